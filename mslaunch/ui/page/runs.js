// The list of runs, and several of them side by side.
import { Plots, legend } from "./plots.js";
import { badge, clear, dateText, durationText, el, labelled, refresh, section, silenceText, stepText, table, valueText } from "./text.js";

const SHOWN = 200;

function lasted(run) {
  if (run.seconds != null) return durationText(run.seconds);
  const until = run.ended ? Date.parse(run.ended) : Date.now();
  return durationText((until - Date.parse(run.started)) / 1000);
}

// The program and what it was given.
function programText(run) {
  return [run.script.split("/").at(-1), run.sweep, run.arguments].filter(Boolean).join(" ");
}

function textsOf(run) {
  return [run.name, run.script, run.state, run.summary ?? "", programText(run), ...(run.tags ?? []), ...(run.notes ?? []).map(([, text]) => text)];
}

// The name, the program, and why the run failed.
function nameOf(run) {
  const program = programText(run);
  return el("div", {},
    el("a", { href: `#${new URLSearchParams({ run: run.name })}`, text: run.name }),
    program ? el("div", { class: "given quiet", text: program, title: `${run.script} ${program}` }) : null,
    run.summary ? el("div", { class: "why", text: run.summary, title: run.summary }) : null);
}

function stateOf(run) {
  return el("div", {}, badge(run.state), run.silent ? el("div", { class: "silent", text: silenceText(run.silent) }) : null);
}

const NEVER_EMPTY = true;
// Name, class, text or element of a run; a column that is empty in all rows is left out unless it is never empty.
const COLUMNS = [
  ["run", "name", nameOf, NEVER_EMPTY],
  ["state", "state", stateOf, NEVER_EMPTY],
  ["loss", "", (run) => valueText("loss", run.values?.loss)],
  ["step", "wide short", (run) => stepText(run.values)],
  ["ranks", "wide", (run) => run.ranks, NEVER_EMPTY],
  ["started", "wide short", (run) => dateText(run.started), NEVER_EMPTY],
  ["took", "wide short", lasted, NEVER_EMPTY],
  ["tags", "wide", (run) => (run.tags ?? []).join(", ")],
  ["note", "wide note", (run) => run.notes?.at(-1)?.[1] ?? ""],
];

export class RunList {
  constructor(open, compare) {
    Object.assign(this, { open, runs: [], chosen: new Set() });
    this.search = el("input", { type: "search", size: 40, placeholder: "name, value, tag, note, script or state", oninput: () => this.fill() });
    this.state = el("select", { onchange: () => this.fill() }, ...["all", "running", "queued", "succeeded", "failed", "stopped", "lost"].map((state) => el("option", { text: state })));
    this.compare = el("button", { type: "button", text: "Compare chosen runs", disabled: true, onclick: () => compare([...this.chosen]) });
    this.note = el("p", { class: "quiet", role: "status" });
    this.body = el("div");
    this.element = section("runs", "Runs", el("div", { class: "controls" }, labelled("Search", this.search), labelled("State", this.state), this.compare), this.note, this.body);
  }

  show(runs) {
    this.runs = runs;
    this.fill();
  }

  fill() {
    const wanted = this.search.value.trim().toLowerCase(), state = this.state.value;
    const matching = this.runs.filter((run) => (state === "all" || run.state === state) && (!wanted || textsOf(run).some((text) => text.toLowerCase().includes(wanted))));
    const shown = matching.slice(0, SHOWN), cells = COLUMNS.map(([, , make]) => shown.map(make));
    const kept = COLUMNS.map((column, i) => i).filter((i) => COLUMNS[i][3] || cells[i].some((cell) => cell !== ""));
    const rows = shown.map((run, at) => [this.box(run), ...kept.map((i) => cells[i][at])]);
    const focused = document.activeElement?.getAttribute("data-run");
    clear(this.body, table(["", ...kept.map((i) => COLUMNS[i][0])], rows, "Runs", ["", ...kept.map((i) => COLUMNS[i][1])]));
    if (focused) this.body.querySelector(`[data-run="${CSS.escape(focused)}"]`)?.focus();
    this.note.textContent = !this.runs.length ? "No runs here yet: start one with `mslaunch train`." : `${matching.length} of ${this.runs.length} runs${matching.length > SHOWN ? `, the newest ${SHOWN} are shown` : ""}`;
  }

  box(run) {
    return el("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, "data-run": run.name, checked: this.chosen.has(run.name), onchange: (event) => {
      if (event.target.checked) this.chosen.add(run.name); else this.chosen.delete(run.name);
      this.compare.disabled = this.chosen.size < 2;
    } });
  }
}

function sectionOf({ title, equal, rows }, names) {
  const rest = rows.length ? `${equal} more are the same` : equal ? "All of it is the same." : "Nothing is known.";
  const shown = rows.map(([name, ...values]) => [name, ...values.map((value) => value ?? "—")]);
  return [el("h3", { text: title }), rows.length ? table(["", ...names], shown, title) : null, el("p", { class: "quiet", text: rest })];
}

function codeOf(found) {
  if (found.without_code.length) return [el("p", { class: "quiet", text: `Not known of ${found.without_code.join(", ")}.` })];
  if (!found.code.length) return [el("p", { class: "quiet", text: `The same (${found.equal_files} files).` })];
  return found.code.map((file) => el("details", {}, el("summary", { text: `${file.path}: ${file.kind} in ${file.run}` }), diffText(file.diff)));
}

function diffText(text) {
  const kinds = { "+": "added", "-": "removed", "@": "quiet" };
  return el("pre", { tabindex: "0", "aria-label": "Differences of the code" }, ...text.split("\n").map((line) => el("span", { class: kinds[line[0]] ?? "", text: `${line}\n` })));
}

export class Comparison {
  constructor() {
    this.plots = new Plots("compare", { title: "these runs", accepts: () => true });
    this.plots.ranks.parentElement.hidden = true;  // the first rank of each run is drawn
    this.names = el("div");
    this.facts = el("div");
    this.element = el("div", {}, section("compared", "Comparison", this.names, this.plots.element), section("differences", "Differences", this.facts));
  }

  show(found) {
    this.plots.show(found.curves);
    clear(this.names, legend(found.names.map((name) => [name, this.plots.colourOf(name)])));
    refresh(this.facts, [found.sections, found.code], () => [...found.sections.flatMap((one) => sectionOf(one, found.names)), el("h3", { text: "code" }), ...codeOf(found)]);
  }
}
