// The parts of a run's page that are text: how it ended, its ranks, configuration, plan and events.
import { HeatMap } from "./heat.js";
import { Plots, RESOURCES } from "./plots.js";
import { badge, clear, dateText, durationText, el, refresh, section, table, valueText } from "./text.js";
import { Timeline } from "./timeline.js";

const RANKS_SHOWN = 64;
const COLUMNS = ["step", "loss", "step_time", "cpu", "memory"];

function fact(name, value) {
  return value === "" || value === null || value === undefined ? [] : [el("dt", { text: name }), el("dd", {}, value instanceof Node ? value : String(value))];
}

function boxed(name, value) {
  const found = fact(name, value);
  return found.length ? [el("div", {}, ...found)] : [];
}

function verdictOf(verdict) {
  if (!verdict) return null;
  const who = verdict.rank === null ? "" : `Rank ${verdict.rank}${verdict.host ? ` on ${verdict.host}` : ""}: `;
  return el("div", { class: "verdict" },
    el("p", { class: "summary" }, el("strong", { text: who }), verdict.summary),
    verdict.advice ? el("p", { text: verdict.advice }) : null,
    verdict.traceback ? el("pre", { tabindex: "0", "aria-label": "Traceback", text: verdict.traceback }) : null,
    el("dl", { class: "facts" },
      ...fact("Cause", verdict.cause),
      ...fact("Known failure", verdict.pattern),
      ...fact("Last epoch and step", verdict.step ? verdict.step.join(", ") : null),
      ...fact("Also failed", verdict.also_failed?.length ? verdict.also_failed.join(", ") : null),
      ...fact("Stopped because of it", verdict.victims?.length ? verdict.victims.join(", ") : null),
      ...fact("Log", verdict.log ? `${verdict.log}${verdict.line ? `:${verdict.line}` : ""}` : null)));
}

function lastsFor(doc, start) {
  const until = doc.record.ended ? Date.parse(doc.record.ended) / 1000 : doc.made;
  return Math.max(0, until - start);
}

// The time as the record has it; what an attempt before took is in no record but in the events.
function took(doc) {
  return lastsFor(doc, doc.record.attempts.length ? doc.start : Date.parse(doc.record.started) / 1000);
}

// How far the job is, where its lines tell the number of steps and epochs.
function progressOf(doc) {
  const values = doc.ranks.find((rank) => rank.values.steps)?.values;
  if (!values || doc.record.state !== "running" || !(values.steps > 0)) return null;
  const epochs = values.epochs > 0 ? values.epochs : 1, epoch = values.epoch > 0 ? values.epoch : 1;
  const done = Math.min(1, ((epoch - 1) * values.steps + values.step) / (values.steps * epochs));
  const left = values.step_time > 0 ? (1 - done) * values.steps * epochs * values.step_time : NaN;
  const text = `${(done * 100).toFixed(1)} %${Number.isFinite(left) ? `, about ${durationText(left)} left` : ""}`;
  return el("div", {}, el("progress", { max: 1, value: done, "aria-label": "Progress" }), ` ${text}`);
}

export class RunView {
  constructor() {
    this.how = el("div");
    this.loss = new Plots("curves", { title: "the script", accepts: (curve) => curve.kind === "rank" && !RESOURCES.has(curve.name) });
    this.resources = new Plots("resources", { title: "resources", accepts: (curve) => curve.kind !== "rank" || RESOURCES.has(curve.name) });
    this.heat = new HeatMap();
    this.timeline = new Timeline();
    this.ranks = new RankTable();
    this.facts = el("div");
    this.events = el("div");
    this.heatSection = section("heat", "Step times", this.heat.element);
    this.element = el("div", {},
      section("end", "How it stands", this.how),
      section("curves", "Curves", this.loss.element),
      this.heatSection,
      section("timeline", "Timeline", this.timeline.element),
      section("ranks", "Ranks", this.ranks.element),
      section("resources", "Resources", this.resources.element),
      section("facts", "Configuration and plan", this.facts),
      section("events", "Events", this.events));
  }

  show(doc) {
    const { record } = doc, length = lastsFor(doc, doc.start);
    clear(this.how,
      el("dl", { class: "facts wide" },
        ...boxed("State", badge(record.state)),
        ...boxed("Exit code", record.exit_code),
        ...boxed("Progress", progressOf(doc)),
        ...boxed("Started", dateText(record.started)),
        ...boxed("Ended", record.ended ? dateText(record.ended) : null),
        ...boxed("Took", durationText(took(doc))),
        ...boxed("Program", record.script),
        ...boxed("Ranks", record.world_size),
        ...boxed("Method", `${record.method}, ${record.transport}`),
        ...boxed("Attempts", record.attempts.length ? record.attempts.length + 1 : null),
        ...boxed("Tags", doc.labels.tags.join(", ")),
        ...boxed("Folder", doc.folder)),
      doc.labels.notes.length ? el("ul", { class: "notes" }, ...doc.labels.notes.map(([time, text]) => el("li", { text: `${dateText(time)} ${text}` }))) : null,
      verdictOf(record.verdict),
      ...record.attempts.filter((attempt) => attempt.verdict).map((attempt) => el("details", {}, el("summary", { text: `Attempt ${attempt.attempt}: ${attempt.verdict.summary}` }), verdictOf(attempt.verdict))),
      record.notes.length ? el("ul", { class: "notes" }, ...record.notes.map((note) => el("li", { text: note }))) : null);
    this.loss.show(doc.curves);
    this.resources.show(doc.curves);
    this.heatSection.hidden = !doc.heat;
    this.heat.show(doc.heat);
    this.timeline.show(doc.timeline, length);
    this.ranks.show(doc.ranks);
    this.showFacts(doc);
    const rows = doc.events.map(([time, name, who, text]) => [time === null ? "" : durationText(time), name, who, text]);
    const left = doc.event_count - doc.events.length;
    refresh(this.events, rows, () => [left > 0 ? el("p", { class: "quiet", text: `${left} events between the first and the last ones are left out; events.jsonl has them all.` }) : null, table(["time", "event", "who", "what"], rows, "Events")]);
  }

  showFacts({ plan, config, record }) {
    refresh(this.facts, [plan, config, record.outputs], () => this.factsOf(plan, config, record));
  }

  factsOf(plan, config, record) {
    const pairs = (caption, values) => el("details", {}, el("summary", { text: caption }), table(["name", "value"], Object.entries(values ?? {}), caption));
    return [
      plan.error ? el("p", { text: plan.error }) : el("dl", { class: "facts" }, ...fact("Command", el("code", { text: plan.command })), ...fact("In", plan.folder), ...fact("Device target", plan.device_target), ...fact("Scheduler", plan.scheduler)),
      el("details", { open: Boolean(config) }, el("summary", { text: "Configuration of the script" }), config ? el("pre", { tabindex: "0", "aria-label": "Configuration", text: config }) : el("p", { text: "It was given none." })),
      plan.hosts ? el("details", {}, el("summary", { text: `Hosts (${plan.hosts.length})` }), table(["host", "address", "devices"], plan.hosts.map((host) => [host.name, host.address, host.devices.join(", ")]), "Hosts")) : null,
      pairs("Settings, and where each came from", plan.settings),
      pairs("Variables of every rank", plan.environment),
      record.outputs.length ? el("details", {}, el("summary", { text: "Files that the ranks wrote" }), table(["path", "ranks", "files", "bytes"], record.outputs.map((one) => [one.path, one.ranks, one.files, valueText("memory", one.bytes)]), "Files that the ranks wrote")) : null,
    ];
  }

  redraw() {
    for (const plots of [this.loss, this.resources]) for (const chart of plots.charts.values()) chart.draw();
    this.heat.draw();
  }
}

class RankTable {
  constructor() {
    this.search = el("input", { type: "search", placeholder: "host, state or rank", oninput: () => this.fill() });
    this.body = el("div");
    this.note = el("p", { class: "quiet", role: "status" });
    this.element = el("div", {}, el("div", { class: "controls" }, el("label", {}, el("span", { text: "Search ranks" }), this.search)), this.body, this.note);
    this.rows = [];
  }

  show(ranks) {
    this.rows = ranks;
    this.fill();
  }

  fill() {
    const wanted = this.search.value.trim().toLowerCase();
    const names = COLUMNS.filter((name) => this.rows.some((rank) => rank.values[name] !== undefined));
    const matching = this.rows.filter((rank) => !wanted || String(rank.rank) === wanted || rank.host.toLowerCase().includes(wanted) || rank.state.includes(wanted));
    const shown = matching.slice(0, RANKS_SHOWN).map((rank) => [rank.rank, rank.host, rank.device, badge(rank.state), rank.signal ? `signal ${rank.signal}` : rank.code, ...names.map((name) => valueText(name, rank.values[name]))]);
    refresh(this.body, [names, matching], () => [table(["rank", "host", "device", "state", "ended by", ...names.map((name) => name.replace("_", " "))], shown, "Ranks")]);
    this.note.textContent = matching.length > RANKS_SHOWN ? `${matching.length - RANKS_SHOWN} further ranks: search for them.` : "";
  }
}
