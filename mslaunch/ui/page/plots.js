// The curves of one or more runs: a chart for every name, with one bar of controls for all of them.
import { Chart } from "./chart.js";
import { clear, durationText, el, labelled, rankFilter, shortNumber, stored, toNumber, valueText } from "./text.js";

export const RESOURCES = new Set(["cpu", "memory", "cpu_wait", "threads", "read_rate", "write_rate"]);
const FIRST = ["loss", "lr", "step_time", "throughput", ...RESOURCES];
const LAST = ["step", "total_step", "epoch"];
const TITLES = { cpu: "cpu (cores)", cpu_wait: "cpu_wait (share of the time)" };
const COLOURS = ["#3b7dd8", "#e8710a", "#12a36b", "#d93a4a", "#8b5cf6", "#0891b2", "#c026d3", "#6a9a1f", "#b7791f"];
const BAND = "#64748b";
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];  // where there are more curves than colours
const LEGEND = 24;

// People count attempts from 1; one that is the only one is not named.
export function curveLabel(curve, hasAttempts) {
  const run = curve.run ? `${curve.run} ` : "", attempt = hasAttempts ? `, attempt ${curve.attempt + 1}` : "";
  if (curve.all) return `${run}median of ${curve.all}${attempt}`;
  if (curve.kind === "rank") return `${run}rank ${curve.rank}${attempt}`;
  return `${run}${curve.host}${curve.kind === "device" ? ` device ${curve.device}` : ""}${attempt}`;
}

function whoOf(curve) {
  return curve.run ?? (curve.kind === "rank" ? curve.rank : `${curve.host} ${curve.device ?? ""}`);
}

// Names in the order in which a person looks for them.
export function orderedNames(names) {
  const place = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : LAST.includes(name) ? 200 + LAST.indexOf(name) : 100);
  return [...names].sort((one, other) => place(one) - place(other) || (one < other ? -1 : 1));
}

// Steps that begin again with an epoch are no axis: the curve would be drawn back over itself.
function ascends(steps) {
  let last = -Infinity;
  return steps.every((step) => {
    const value = toNumber(step), isNext = !(value < last);
    if (Number.isFinite(value)) last = value;
    return isNext;
  });
}

export class Plots {
  constructor(id, { accepts, title, byTime = false }) {
    this.accepts = accepts;
    this.title = title;
    this.charts = new Map();
    this.state = { smooth: Number(stored("smooth") ?? 0) || 0, log: false, byTime, ranks: "", ranges: {} };
    this.grid = el("div", { class: "charts" });
    this.counterGrid = el("div", { class: "charts" });
    this.counters = el("details", { class: "counters", hidden: true }, el("summary", { text: "Counters" }), this.counterGrid);
    this.note = el("p", { class: "quiet", role: "status" });
    this.legend = el("div");
    this.element = el("div", {}, this.controls(id), this.note, this.legend, this.grid, this.counters);
    this.curves = [];
    this.until = null;
  }

  controls(id) {
    const smooth = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: this.state.smooth, oninput: (event) => { stored("smooth", event.target.value); this.change({ smooth: Number(event.target.value) }); } });
    const log = el("input", { type: "checkbox", onchange: (event) => this.change({ log: event.target.checked }) });
    this.axis = el("select", { onchange: (event) => this.change({ byTime: event.target.value === "time" }) }, el("option", { value: "step", text: "step" }), el("option", { value: "time", text: "time", selected: this.state.byTime }));
    this.ranks = el("input", { type: "search", size: 9, placeholder: "0,2-3", spellcheck: "false", oninput: (event) => this.change({ ranks: event.target.value }) });
    const reset = el("button", { type: "button", text: "Whole range", onclick: () => this.change({ ranges: {} }) });
    return el("div", { class: "controls", id: `${id}-controls` }, labelled("Smoothing", smooth), labelled("Log scale", log), labelled("By", this.axis), labelled("Ranks", this.ranks), reset);
  }

  change(changes) {
    Object.assign(this.state, changes);
    this.show(this.curves, this.until);
  }

  // `until` is where axes of time end at least: now, of a run that goes on.
  show(curves, until = null) {
    this.curves = curves.filter(this.accepts);
    this.until = until;
    const filter = rankFilter(this.state.ranks);
    this.ranks.setAttribute("aria-invalid", String(filter === null));
    const names = orderedNames(new Set(this.curves.map((curve) => `${curve.kind === "rank" ? "" : `${curve.kind}: `}${curve.name}`)));
    this.note.textContent = names.length ? (filter === null ? "Ranks: write for example 0,2-3." : "") : `No numbers of ${this.title} have been recorded.`;
    this.hasAttempts = this.curves.some((curve) => curve.attempt > 0);
    this.people = peopleOf(this.curves);
    const isShown = filter ?? (() => true);
    this.showLegend(isShown);
    for (const [name, chart] of this.charts) if (!names.includes(name)) { chart.element.remove(); this.charts.delete(name); }
    for (const name of names) this.showChart(name, isShown);
    this.place(this.grid, names.filter((name) => !LAST.includes(name)));
    this.place(this.counterGrid, names.filter((name) => LAST.includes(name)));
    this.counters.hidden = !this.counterGrid.childElementCount;
  }

  // One order, whichever number came first; a chart that stands where it should is not touched, so that it keeps the focus.
  place(grid, names) {
    names.forEach((name, i) => {
      const { element } = this.charts.get(name);
      if (grid.children[i] !== element) grid.insertBefore(element, grid.children[i] ?? null);
    });
  }

  showLegend(isShown) {
    const own = new Map(this.curves.filter((curve) => !curve.all && !curve.run && curve.kind === "rank" && isShown(curve.rank)).sort((one, other) => one.attempt - other.attempt || one.rank - other.rank).map((curve) => [curveLabel(curve, this.hasAttempts), this.styleOf(curve)]));
    const bands = this.state.ranks ? [] : this.curves.filter((curve) => curve.all && curve.kind === "rank");
    const most = Math.max(0, ...bands.map((curve) => curve.all));
    const rows = [...own].map(([label, style]) => [label, style.colour, style.dash]);
    if (most) rows.push([`median of ${most} ranks; shade: least to greatest`, BAND, []]);
    clear(this.legend, rows.length > 1 && rows.length <= LEGEND ? legend(rows) : null);
  }

  colourOf(who) {
    return COLOURS[Math.max(0, this.people.indexOf(keyOf(who, 0))) % COLOURS.length];
  }

  // Every curve has a colour and a dash of its own; the attempts of a run that is compared share its colour.
  styleOf(curve) {
    if (curve.all) return { colour: BAND, dash: this.hasAttempts ? DASHES[curve.attempt % DASHES.length] : [] };
    if (curve.run) return { colour: this.colourOf(curve.run), dash: DASHES[curve.attempt % DASHES.length] };
    const at = this.people.indexOf(keyOf(whoOf(curve), curve.attempt));
    return { colour: COLOURS[at % COLOURS.length], dash: DASHES[Math.floor(at / COLOURS.length) % DASHES.length] };
  }

  showChart(name, filter) {
    const [kind, plain] = name.includes(": ") ? name.split(": ") : ["rank", name];
    const all = this.curves.filter((curve) => curve.kind === kind && curve.name === plain);
    const hasSteps = all.some((curve) => curve.s) && all.every((curve) => !curve.s || ascends(curve.s)) && !["step", "total_step"].includes(plain);
    const byTime = this.state.byTime || !hasSteps;
    const shown = all.filter((curve) => curve.all || kind !== "rank" || filter(curve.rank));
    const bands = this.state.ranks ? shown.filter((curve) => !curve.all) : shown;
    const lines = bands.map((curve) => ({
      label: curveLabel(curve, this.hasAttempts),
      x: byTime ? curve.t : (curve.s ?? curve.t.map(() => NaN)).map(toNumber),
      y: curve.v.map(toNumber),
      lo: curve.lo?.map(toNumber),
      hi: curve.hi?.map(toNumber),
      isBand: Boolean(curve.all),
      ...this.styleOf(curve),
    }));
    const chart = this.charts.get(name) ?? this.addChart(name, plain);
    const xText = byTime ? durationText : shortNumber;
    const xName = byTime ? "time" : "step";
    chart.set({ lines, xText, xName, until: this.until, smooth: this.state.smooth, log: this.state.log, range: this.state.ranges[xName] ?? null });
  }

  addChart(name, plain) {
    const onZoom = (range) => this.change({ ranges: { ...this.state.ranges, [chart.xName]: range } });
    const chart = new Chart(TITLES[name] ?? name, plain, { xText: shortNumber, yText: (value) => valueText(plain, value), onZoom });
    this.charts.set(name, chart);
    return chart;
  }
}

function keyOf(who, attempt) {
  return JSON.stringify([attempt, who]);
}

// Who has curves, the earliest attempt first, so that a restart changes no colour; runs as they were chosen.
function peopleOf(curves) {
  const found = new Map();
  for (const curve of curves) if (!curve.all) found.set(keyOf(whoOf(curve), curve.run ? 0 : curve.attempt), curve);
  const place = ([, curve]) => (curve.run ? 0 : curve.attempt * 1e9 + (curve.rank ?? 1e8));
  return [...found].sort((one, other) => place(one) - place(other)).map(([key]) => key);
}

// Rows of a label, its colour and its dash.
export function legend(rows) {
  return el("ul", { class: "legend" }, ...rows.map(([label, colour, dash = []]) => {
    const line = el("span", { class: "stroke" });
    line.style.background = dash.length ? `repeating-linear-gradient(90deg, ${colour} 0 ${Math.min(6, dash[0])}px, transparent 0 ${Math.min(6, dash[0]) + dash[1]}px)` : colour;
    return el("li", {}, line, label);
  }));
}
