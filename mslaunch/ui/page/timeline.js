// The timeline of the ranks: start, join, failure and end of every attempt.
import { clear, durationText, el } from "./text.js";

const SHOWN = 32;

function phases(span, until, first) {
  const end = span.ended ?? until;
  const points = [[first, span.started], ["joining", span.joining], ["joined", span.joined]].filter(([, at]) => at !== undefined);
  return points.map(([name, at], i) => [name, at, points[i + 1]?.[1] ?? end]);
}

function outcome(span) {
  if (span.ended === undefined) return "running";
  if (span.stopped) return "stopped";
  return span.code === 0 ? "succeeded" : "failed";
}

function words(span, hasAttempts) {
  const parts = [`rank ${span.rank}${hasAttempts ? `, attempt ${span.attempt + 1}` : ""}`];
  for (const name of ["started", "joined", "failed", "ended"]) if (span[name] !== undefined) parts.push(`${name} at ${durationText(span[name])}`);
  if (span.ended !== undefined) parts.push(span.signal ? `signal ${span.signal}` : `exit code ${span.code}`);
  return parts.join(", ");
}

export class Timeline {
  constructor() {
    this.rows = el("div", { class: "timeline", role: "list", "aria-label": "Ranks over time" });
    this.more = el("button", { type: "button", onclick: () => { this.isWhole = true; this.show(this.timeline, this.until); } });
    this.foot = el("p", { class: "quiet axis" });
    this.key = el("p", { class: "key" });
    this.element = el("div", {}, this.key, this.rows, this.foot, this.more);
    this.isWhole = false;
  }

  show(timeline, until) {
    const joins = timeline.spans.some((span) => span.joining !== undefined || span.joined !== undefined);
    Object.assign(this, { timeline, until, first: joins ? "starting" : "running" });
    const ends = [["failed", "failure"], ["stopped", "stopped"]].filter(([end]) => timeline.spans.some((span) => outcome(span) === end)).map(([, name]) => name);
    const restarts = timeline.marks.some(([, name]) => name === "restart") ? ["restart"] : [];
    const names = [...(joins ? ["starting", "joining", "joined"] : ["running"]), ...ends, ...restarts];
    clear(this.key, ...names.map((name) => el("span", { class: `phase ${name}`, text: name })));
    const byRank = Map.groupBy ? Map.groupBy(timeline.spans, (span) => span.rank) : groups(timeline.spans);
    const all = [...byRank.entries()];
    const failedFirst = all.length > SHOWN && !this.isWhole ? all.sort(([, one], [, other]) => Number(hasFailed(other)) - Number(hasFailed(one))) : all;
    const shown = this.isWhole ? all : failedFirst.slice(0, SHOWN);
    const first = Math.min(0, ...timeline.spans.map((span) => span.started ?? 0)), width = until - first || 1;
    clear(this.rows, ...shown.map(([rank, spans]) => this.row(rank, spans, first, width)));
    this.foot.textContent = `${durationText(first)} to ${durationText(until)} after the start`;
    this.more.hidden = shown.length === all.length;
    this.more.textContent = `Show all ${all.length} ranks`;
  }

  row(rank, spans, first, width) {
    const track = el("div", { class: "track" });
    const place = (element, from, to) => {
      element.style.left = `${((from - first) / width) * 100}%`;
      element.style.width = `${Math.max(0.15, ((to - from) / width) * 100)}%`;
      return element;
    };
    for (const span of spans) {
      for (const [name, from, to] of phases(span, this.until, this.first)) track.append(place(el("span", { class: `phase ${name}` }), from, to));
      if (outcome(span) === "failed") track.append(place(el("span", { class: "phase failure" }), span.failed ?? span.ended, span.failed ?? span.ended));
      if (outcome(span) === "stopped") track.append(place(el("span", { class: "phase stopped" }), span.ended, span.ended));
    }
    for (const [at, name] of this.timeline.marks) if (name === "restart") track.append(place(el("span", { class: "phase restart" }), at, at));
    const text = spans.map((span) => words(span, spans.length > 1 || span.attempt > 0)).join("; ");
    return el("div", { class: "row", role: "listitem", title: text }, el("span", { class: "who", text: `rank ${rank}` }), track, el("span", { class: "hidden", text }));
  }
}

function hasFailed(spans) {
  return spans.some((span) => outcome(span) === "failed");
}

function groups(spans) {
  const found = new Map();
  for (const span of spans) found.set(span.rank, [...(found.get(span.rank) ?? []), span]);
  return found;
}
