// The curves of one or more runs: a chart for every name, with one bar of controls for all of them.
import { COLOURS, Chart } from "./chart.js";
import { clear, durationText, el, labelled, rankFilter, shortNumber, stored, toNumber, valueText } from "./text.js";

export const RESOURCES = new Set(["cpu", "memory", "cpu_wait", "threads", "read_rate", "write_rate"]);
const FIRST = ["loss", "lr", "step_time", "throughput", ...RESOURCES];
const LAST = ["step", "total_step", "epoch"];
const TITLES = { cpu: "cpu (cores)", cpu_wait: "cpu_wait (share of the time)" };
const LEGEND = 16;

export function curveLabel(curve) {
  const run = curve.run ? `${curve.run} ` : "", attempt = curve.attempt ? `, attempt ${curve.attempt}` : "";
  if (curve.all) return `${run}median of ${curve.all}`;
  if (curve.kind === "rank") return `${run}rank ${curve.rank}${attempt}`;
  return `${run}${curve.host}${curve.kind === "device" ? ` device ${curve.device}` : ""}${attempt}`;
}

function whoOf(curve) {
  return curve.run ?? (curve.kind === "rank" ? curve.rank : `${curve.host} ${curve.device ?? ""}`);
}

// Names in the order in which a person looks for them.
export function orderedNames(names) {
  const place = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : LAST.includes(name) ? 200 + LAST.indexOf(name) : 100);
  return [...names].sort((one, other) => place(one) - place(other));
}

export class Plots {
  constructor(id, { accepts, title }) {
    this.accepts = accepts;
    this.title = title;
    this.charts = new Map();
    this.state = { smooth: Number(stored("smooth") ?? 0) || 0, log: false, byTime: false, ranks: "", ranges: {} };
    this.grid = el("div", { class: "charts" });
    this.note = el("p", { class: "quiet", role: "status" });
    this.legend = el("div");
    this.element = el("div", {}, this.controls(id), this.note, this.legend, this.grid);
    this.curves = [];
  }

  controls(id) {
    const smooth = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: this.state.smooth, oninput: (event) => { stored("smooth", event.target.value); this.change({ smooth: Number(event.target.value) }); } });
    const log = el("input", { type: "checkbox", onchange: (event) => this.change({ log: event.target.checked }) });
    this.axis = el("select", { onchange: (event) => this.change({ byTime: event.target.value === "time" }) }, el("option", { value: "step", text: "step" }), el("option", { value: "time", text: "time" }));
    this.ranks = el("input", { type: "search", size: 9, placeholder: "0,2-3", spellcheck: "false", oninput: (event) => this.change({ ranks: event.target.value }) });
    const reset = el("button", { type: "button", text: "Whole range", onclick: () => this.change({ ranges: {} }) });
    return el("div", { class: "controls", id: `${id}-controls` }, labelled("Smoothing", smooth), labelled("Log scale", log), labelled("By", this.axis), labelled("Ranks", this.ranks), reset);
  }

  change(changes) {
    Object.assign(this.state, changes);
    this.show(this.curves);
  }

  show(curves) {
    this.curves = curves.filter(this.accepts);
    const filter = rankFilter(this.state.ranks);
    this.ranks.setAttribute("aria-invalid", String(filter === null));
    const names = orderedNames(new Set(this.curves.map((curve) => `${curve.kind === "rank" ? "" : `${curve.kind}: `}${curve.name}`)));
    this.note.textContent = names.length ? (filter === null ? "Ranks: write for example 0,2-3." : "") : `No numbers of ${this.title} have been recorded.`;
    this.people = [...new Set(this.curves.filter((curve) => !curve.all).map(whoOf))];
    const ranks = this.people.filter((who) => typeof who === "number" && (filter ?? (() => true))(who));
    clear(this.legend, ranks.length > 1 && ranks.length <= LEGEND ? legend(ranks.map((rank) => [`rank ${rank}`, this.colourOf(rank)])) : null);
    for (const [name, chart] of this.charts) if (!names.includes(name)) { chart.element.remove(); this.charts.delete(name); }
    for (const name of names) this.showChart(name, filter ?? (() => true));
  }

  colourOf(who) {
    return COLOURS[this.people.indexOf(who) % COLOURS.length];
  }

  showChart(name, filter) {
    const [kind, plain] = name.includes(": ") ? name.split(": ") : ["rank", name];
    const all = this.curves.filter((curve) => curve.kind === kind && curve.name === plain);
    const hasSteps = all.some((curve) => curve.s) && !["step", "total_step"].includes(plain);
    const byTime = this.state.byTime || !hasSteps;
    const shown = all.filter((curve) => curve.all || kind !== "rank" || filter(curve.rank));
    const bands = this.state.ranks ? shown.filter((curve) => !curve.all) : shown;
    const lines = bands.map((curve) => ({
      label: curveLabel(curve),
      x: byTime ? curve.t : (curve.s ?? curve.t.map(() => NaN)).map(toNumber),
      y: curve.v.map(toNumber),
      lo: curve.lo?.map(toNumber),
      hi: curve.hi?.map(toNumber),
      isBand: Boolean(curve.all),
      colour: curve.all ? "#64748b" : this.colourOf(whoOf(curve)),
    }));
    const chart = this.charts.get(name) ?? this.addChart(name, plain);
    const xText = byTime ? durationText : shortNumber;
    const xName = byTime ? "time" : "step";
    chart.set({ lines, xText, xName, smooth: this.state.smooth, log: this.state.log, range: this.state.ranges[xName] ?? null });
  }

  addChart(name, plain) {
    const onZoom = (range) => this.change({ ranges: { ...this.state.ranges, [chart.xName]: range } });
    const chart = new Chart(TITLES[name] ?? name, { xText: shortNumber, yText: (value) => valueText(plain, value), onZoom });
    this.charts.set(name, chart);
    this.grid.append(chart.element);
    return chart;
  }
}

// Rows of a label and its colour.
export function legend(rows) {
  return el("ul", { class: "legend" }, ...rows.map(([label, colour]) => {
    const dot = el("span", { class: "dot" });
    dot.style.background = colour;
    return el("li", {}, dot, label);
  }));
}
