// The first words on a run: why it failed, how good and how fast it is, how it stands.
import { badge, dateText, durationText, el, silenceText, stepText, toNumber, valueText } from "./text.js";

export function fact(name, value) {
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
      ...(verdict.ties ?? []).flatMap((tie) => fact(`Or rank ${tie.ranks.join(", ")}`, `too close in time to tell: ${tie.summary}`)),
      ...fact("Also failed", verdict.also_failed?.length ? verdict.also_failed.join(", ") : null),
      ...fact("Stopped because of it", verdict.victims?.length ? verdict.victims.join(", ") : null),
      ...fact("Log", verdict.log ? `${verdict.log}${verdict.line ? `:${verdict.line}` : ""}` : null)));
}

export function lastsFor(doc, start) {
  const until = doc.record.ended ? Date.parse(doc.record.ended) / 1000 : doc.made;
  return Math.max(0, until - start);
}

// The time as the record has it; what an attempt before took is in no record but in the events.
function took(doc) {
  if (doc.record.seconds != null && !doc.record.attempts.length) return doc.record.seconds;
  return lastsFor(doc, doc.record.attempts.length ? doc.start : Date.parse(doc.record.started) / 1000);
}

// How far the job is, or the epoch where its lines do not tell how many there are.
function progressOf({ progress }) {
  if (!progress) return null;
  const part = progress.of ? ` ${progress.of}` : "", rest = progress.left === null ? "" : `, about ${durationText(progress.left)} left`;
  return el("div", {}, el("progress", { max: 1, value: progress.share, "aria-label": "Progress" }), el("div", { text: `${(progress.share * 100).toFixed(1)}\u00a0%${part}${rest}` }));
}

function farOf(values) {
  const isCounted = values.total_step !== undefined && values.steps > 0 && values.epochs > 0;
  return `${stepText(values)}${isCounted ? ` of ${valueText("step", values.steps * values.epochs)}` : ""}`;
}

function paceText(seconds) {
  const rate = 1 / toNumber(seconds);
  if (!(rate > 0 && rate < Infinity)) return "";
  return rate >= 1 ? `${Number(rate.toPrecision(3))} steps/s` : `${Number((1 / rate).toPrecision(3))} s/step`;
}

// How good and how fast, of the first rank that tells it.
function tiles(doc) {
  const first = doc.ranks.find(({ values }) => values.loss !== undefined) ?? doc.ranks.find(({ values }) => values.step !== undefined || values.total_step !== undefined);
  return el("dl", { class: "facts wide tiles" },
    ...boxed("Loss", first ? valueText("loss", first.values.loss) : null),
    ...boxed("Step", first ? farOf(first.values) : null),
    ...boxed("Speed", first ? paceText(first.pace) : null),
    ...boxed("State", standing(doc)));
}

// The state, and whether steps still come.
export function standing(doc) {
  return el("span", {}, badge(doc.record.state), doc.silent ? el("span", { class: "silent", text: ` ${silenceText(doc.silent)}` }) : null);
}

export function headOf(doc) {
  const { record } = doc;
  return [
    verdictOf(record.verdict),
    tiles(doc),
    el("dl", { class: "facts wide" },
      ...boxed("Progress", progressOf(doc)),
      ...boxed("Started", dateText(record.started)),
      ...boxed("Ended", record.ended ? dateText(record.ended) : null),
      ...boxed(record.ended || record.state === "lost" ? "Took" : record.state === "running" ? "Running for" : "For", durationText(took(doc))),
      ...boxed("Program", record.script),
      ...boxed("Sweep values", doc.given.sweep),
      ...boxed("Arguments", doc.given.arguments),
      ...boxed("Ranks", record.world_size),
      ...boxed("Method", `${record.method}, ${record.transport}`),
      ...boxed("Attempts", record.attempts.length ? record.attempts.length + 1 : null),
      ...boxed("Exit code", record.exit_code),
      ...boxed("Tags", doc.labels.tags.join(", ")),
      ...boxed("Folder", doc.folder)),
    doc.labels.notes.length ? el("ul", { class: "notes" }, ...doc.labels.notes.map(([time, text]) => el("li", { text: `${dateText(time)} ${text}` }))) : null,
    ...record.attempts.filter((attempt) => attempt.verdict).map((attempt) => el("details", {}, el("summary", { text: `Attempt ${attempt.attempt + 1}: ${attempt.verdict.summary}` }), verdictOf(attempt.verdict))),
    record.notes.length ? el("ul", { class: "notes" }, ...record.notes.map((note) => el("li", { text: note }))) : null,
  ];
}
