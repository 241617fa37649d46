// Starts the page: a report has its document in itself, otherwise a server is asked.
import { LogEnds, LogView } from "./logs.js";
import { standing } from "./head.js";
import { Comparison, RunList } from "./runs.js";
import { RunView } from "./sections.js";
import { Failure, Server } from "./server.js";
import { clear, el, rankFilter, section, stored } from "./text.js";

const EVERY = 2000;
const top = document.getElementById("top"), main = document.getElementById("main");
let redraw = () => {};

function themeSwitch() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = stored("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const button = el("button", { type: "button", class: "theme", onclick: () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    stored("theme", document.documentElement.dataset.theme);
    name();
    redraw();
  } });
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Use ${button.textContent.toLowerCase()} colours`); };
  dark.addEventListener("change", () => { name(); redraw(); });
  name();
  return button;
}

function showTop(title, ...parts) {
  clear(top, el("div", { class: "title" }, el("h1", { text: title }), ...parts), themeSwitch());
}

function showReport(doc) {
  const view = new RunView(), logs = new LogEnds(doc.logs);
  view.element.append(section("logs", "Ends of the logs", logs.element));
  showTop(doc.name, standing(doc));
  clear(main, view.element);
  view.show(doc);
  logs.choose(doc.record.verdict?.rank ?? 0);
  redraw = () => view.redraw();
}

class App {
  constructor() {
    this.server = new Server();
    this.error = el("p", { class: "error", role: "alert", hidden: true });
    this.list = new RunList(null, (names) => { location.hash = new URLSearchParams(names.map((name) => ["compare", name])).toString(); });
    window.addEventListener("hashchange", () => this.route());
    this.turn = 0;
    this.route();
  }

  async route() {
    this.turn += 1;
    const turn = this.turn, wanted = new URLSearchParams(location.hash.slice(1));
    const look = wanted.has("run") ? this.showRun(wanted.get("run")) : wanted.has("compare") ? this.showComparison(wanted.getAll("compare")) : this.showList();
    while (turn === this.turn) {
      if (!document.hidden) {
        try {
          await look();
          if (turn === this.turn) this.error.hidden = true;
        } catch (failure) {
          if (!(failure instanceof Failure)) throw failure;
          this.error.textContent = failure.message;
          this.error.hidden = false;
        }
      }
      await new Promise((done) => { setTimeout(done, EVERY); });
    }
  }

  home() {
    return el("a", { href: "#", text: "All runs" });
  }

  showList() {
    showTop("mslaunch");
    document.title = "mslaunch";
    clear(main, this.error, this.list.element);
    redraw = () => {};
    return async () => {
      const runs = await this.server.getChanged("runs");
      if (runs) this.list.show(runs);
    };
  }

  showComparison(names) {
    const view = new Comparison();
    showTop("Comparison", this.home());
    clear(main, this.error, view.element);
    redraw = () => { for (const chart of view.plots.charts.values()) chart.draw(); };
    const query = names.map((name) => ["name", name]);
    return async () => {
      const found = await this.server.getChanged("compare", query);
      if (found) view.show(found);
    };
  }

  showRun(name) {
    const view = new RunView(), logs = new LogView(this.server, name), actions = new Actions(this.server, name);
    view.element.append(section("logs", "Logs", logs.element));
    clear(main, this.error, actions.element, view.element);
    showTop(name, this.home());
    document.title = name;
    redraw = () => view.redraw();
    const turn = this.turn;
    const follow = setInterval(() => {
      if (turn !== this.turn) clearInterval(follow);
      else logs.read().catch(() => {});
    }, EVERY / 2);
    return async () => {
      const ranks = view.loss.state.ranks;
      const doc = await this.server.getChanged("run", { name, ...(ranks && rankFilter(ranks) ? { ranks } : {}) });
      if (!doc) return;
      showTop(name, standing(doc), this.home());
      actions.show(doc);
      view.show(doc);
      logs.setRun(doc);
    };
  }
}

// Stacks and stopping, of a run that goes on.
class Actions {
  constructor(server, name) {
    Object.assign(this, { server, name });
    this.stacks = el("button", { type: "button", text: "Take stacks", onclick: () => this.takeStacks() });
    this.stop = el("button", { type: "button", class: "danger", text: "Stop the run", onclick: () => this.ask() });
    this.dialog = el("dialog", { "aria-label": "Stop the run" });
    this.output = el("pre", { hidden: true, tabindex: "0", "aria-label": "Stacks" });
    this.note = el("p", { class: "quiet", role: "status" });
    this.element = el("div", { class: "actions", hidden: true }, el("div", { class: "controls" }, this.stacks, this.stop), this.note, this.output, this.dialog);
  }

  show(doc) {
    this.element.hidden = doc.record.state !== "running" && !this.output.textContent;
    this.stacks.hidden = doc.record.state !== "running";
    this.stop.hidden = !doc.may_stop || doc.record.state !== "running";
  }

  async act(button, words, path) {
    button.disabled = true;
    this.note.textContent = words;
    try {
      const found = await this.server.post(path, { name: this.name });
      this.note.textContent = "";
      return found;
    } catch (failure) {
      this.note.textContent = failure.message;
      return null;
    } finally {
      button.disabled = false;
    }
  }

  async takeStacks() {
    const found = await this.act(this.stacks, "Taking stacks …", "stacks");
    if (!found) return;
    this.output.textContent = found.stacks.join("\n\n");
    this.output.hidden = false;
  }

  ask() {
    const close = () => this.dialog.close();
    clear(this.dialog, el("p", { text: `Stop ${this.name}? All of its ranks are ended.` }), el("div", { class: "controls" },
      el("button", { type: "button", class: "danger", text: "Stop it", onclick: () => { close(); this.act(this.stop, "Stopping …", "stop"); } }),
      el("button", { type: "button", text: "Let it run", autofocus: true, onclick: close })));
    this.dialog.showModal();
  }
}

const held = document.getElementById("document");
if (held) showReport(JSON.parse(held.textContent));
else new App();
