// The page of a run in its parts: how it stands, curves, ranks, configuration, plan and events.
import { HeatMap } from "./heat.js";
import { Plots, RESOURCES } from "./plots.js";
import { fact, headOf, lastsFor } from "./head.js";
import { badge, clear, durationText, el, refresh, section, silenceText, stepText, table, valueText } from "./text.js";
import { Timeline } from "./timeline.js";

const RANKS_SHOWN = 64;
const COLUMNS = ["step", "loss", "step_time", "cpu", "memory"];

export class RunView {
  constructor() {
    this.how = el("div");
    this.loss = new Plots("curves", { title: "the script", accepts: (curve) => curve.kind === "rank" && !RESOURCES.has(curve.name) });
    this.resources = new Plots("resources", { title: "resources", byTime: true, accepts: (curve) => curve.kind !== "rank" || RESOURCES.has(curve.name) });
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
    const length = lastsFor(doc, doc.start), until = doc.record.state === "running" ? length : null;
    clear(this.how, ...headOf(doc));
    this.loss.show(doc.curves, until);
    this.resources.show(doc.curves, until);
    this.heatSection.hidden = !doc.heat;
    this.heat.show(doc.heat, until);
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

function stateOf(rank) {
  return el("span", {}, badge(rank.state), rank.silent ? el("span", { class: "silent", text: ` ${silenceText(rank.silent)}` }) : null);
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
    const isTold = { step: (values) => stepText(values) !== "" };
    const names = COLUMNS.filter((name) => this.rows.some(({ values }) => (isTold[name] ? isTold[name](values) : values[name] !== undefined)));
    const matching = this.rows.filter((rank) => !wanted || String(rank.rank) === wanted || rank.host.toLowerCase().includes(wanted) || rank.state.includes(wanted));
    const shown = matching.slice(0, RANKS_SHOWN).map((rank) => [rank.rank, rank.host, rank.device, stateOf(rank), rank.signal ? `signal ${rank.signal}` : rank.code, ...names.map((name) => (name === "step" ? stepText(rank.values) : valueText(name, rank.values[name])))]);
    refresh(this.body, [names, matching], () => [table(["rank", "host", "device", "state", "ended by", ...names.map((name) => name.replace("_", " "))], shown, "Ranks")]);
    this.note.textContent = matching.length > RANKS_SHOWN ? `${matching.length - RANKS_SHOWN} further ranks: search for them.` : "";
  }
}
