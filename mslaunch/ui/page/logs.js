// Logs: the ends of them in a report; followed, searched and read backwards where there is a server.
import { clear, el, labelled, rankFilter } from "./text.js";

const MOST_LINES = 5000, MOST_FOLLOWED = 8;

function lineOf(text, rank, wanted) {
  const made = el("div", { class: "line" }, rank === null ? null : el("span", { class: "who", text: rank }));
  const at = wanted ? text.toLowerCase().indexOf(wanted) : -1;
  if (at < 0) made.append(text || " ");
  else made.append(text.slice(0, at), el("mark", { text: text.slice(at, at + wanted.length) }), text.slice(at + wanted.length));
  return made;
}

function nameOf(rank) {
  return rank === null ? "scheduler" : `rank ${rank}`;
}

// The ends of all logs, as a report holds them.
export class LogEnds {
  constructor(logs) {
    this.logs = logs;
    this.choice = el("select", { onchange: () => this.fill() }, ...logs.map((log, i) => el("option", { value: i, text: nameOf(log.rank) })));
    this.search = el("input", { type: "search", oninput: () => this.fill() });
    this.note = el("p", { class: "quiet", role: "status" });
    this.lines = el("div", { class: "log", tabindex: "0", role: "region", "aria-label": "Last lines of the log" });
    this.element = el("div", {}, el("div", { class: "controls" }, labelled("Log of", this.choice), labelled("Lines with", this.search)), this.note, this.lines);
    this.fill();
  }

  choose(rank) {
    const at = this.logs.findIndex((log) => log.rank === rank);
    if (at >= 0) this.choice.value = String(at);
    this.fill();
  }

  fill() {
    const log = this.logs[Number(this.choice.value)], wanted = this.search.value.toLowerCase();
    if (!log) { this.note.textContent = "There is no log."; return; }
    const shown = log.lines.filter((line) => !wanted || line.toLowerCase().includes(wanted));
    this.note.textContent = `${shown.length} lines${log.start ? `; ${log.start} bytes before them are in the log alone` : ""}`;
    clear(this.lines, ...shown.map((line) => lineOf(line, null, wanted)));
    this.lines.scrollTop = this.lines.scrollHeight;
  }
}

// Logs that a server reads: windows by offset, so that their size does not matter.
export class LogView {
  constructor(server, name) {
    Object.assign(this, { server, name, ends: new Map(), first: 0, isBusy: false, searching: 0 });
    this.ranks = el("input", { type: "search", size: 9, value: "0", spellcheck: "false", onchange: () => this.restart() });
    this.attempt = el("select", { onchange: () => this.restart() });
    this.follow = el("input", { type: "checkbox", checked: true });
    this.search = el("input", { type: "search", onkeydown: (event) => { if (event.key === "Enter") this.find(); } });
    this.older = el("button", { type: "button", text: "Older lines", onclick: () => this.showOlder() });
    this.note = el("p", { class: "quiet", role: "status" });
    this.lines = el("div", { class: "log", tabindex: "0", role: "region", "aria-label": "Log" });
    this.element = el("div", {}, el("div", { class: "controls" },
      labelled("Ranks", this.ranks), labelled("Attempt", this.attempt), labelled("Follow", this.follow), this.older,
      labelled("Find", this.search), el("button", { type: "button", text: "Find in the whole log", onclick: () => this.find() }), el("button", { type: "button", text: "Back to the end", onclick: () => this.restart() })), this.note, this.lines);
    this.world = 1;
  }

  setRun(doc) {
    this.world = doc.record.world_size;
    this.hasEnded = doc.record.state !== "running" && doc.record.state !== "queued";
    if (this.attempt.options.length === doc.attempt + 1) return;
    clear(this.attempt, ...Array.from({ length: doc.attempt + 1 }, (_, i) => el("option", { value: i, text: i + 1, selected: i === doc.attempt })));
    this.restart();
  }

  chosen() {
    const filter = rankFilter(this.ranks.value);
    this.ranks.setAttribute("aria-invalid", String(filter === null));
    return filter ? Array.from({ length: this.world }, (_, rank) => rank).filter(filter).slice(0, MOST_FOLLOWED) : [];
  }

  query(rank, more) {
    return { name: this.name, rank, attempt: this.attempt.value || 0, ...more };
  }

  async restart() {
    this.searching += 1;
    const turn = this.searching, ranks = this.chosen();
    this.older.hidden = ranks.length !== 1;
    clear(this.lines);
    this.ends.clear();
    const windows = await Promise.all(ranks.map((rank) => this.server.get("log", this.query(rank, { rest: 1 }))));
    if (turn !== this.searching) return;
    this.note.textContent = ranks.length ? ranks.map((rank, i) => `${nameOf(rank)}: ${windows[i].size} bytes`).join(", ") : "Ranks: write for example 0,2-3.";
    ranks.forEach((rank, i) => this.ends.set(rank, windows[i].end));
    this.first = windows[0]?.start ?? 0;
    this.append(merged(ranks, windows));
    this.isFollowing = true;
  }

  append(lines) {
    const several = this.ends.size > 1;
    this.lines.append(...lines.map(([rank, text]) => lineOf(text, several ? rank : null, "")));
    while (this.lines.childElementCount > MOST_LINES) this.lines.firstChild.remove();
    if (this.follow.checked) this.lines.scrollTop = this.lines.scrollHeight;
  }

  async read() {
    if (!this.isFollowing || !this.follow.checked || this.isBusy || document.hidden) return;
    this.isBusy = true;
    const turn = this.searching;
    try {
      for (const [rank, at] of [...this.ends]) {
        const found = await this.server.get("log", this.query(rank, { at, ...(this.hasEnded ? { rest: 1 } : {}) }));
        if (turn !== this.searching) return;
        this.ends.set(rank, found.end);
        this.append(found.lines.map((line) => [rank, line]));
      }
    } finally {
      this.isBusy = false;
    }
  }

  async showOlder() {
    const [rank] = this.chosen();
    if (!this.first) { this.note.textContent = "This is the beginning of the log."; return; }
    this.follow.checked = false;
    const found = await this.server.get("log", this.query(rank, { before: this.first }));
    this.first = found.start;
    const height = this.lines.scrollHeight;
    this.lines.prepend(...found.lines.map((line) => lineOf(line, null, "")));
    this.lines.scrollTop = this.lines.scrollHeight - height;
    this.note.textContent = `from byte ${found.start} of ${found.size}`;
  }

  async find() {
    const wanted = this.search.value;
    if (!wanted) return this.restart();
    this.searching += 1;
    const turn = this.searching, ranks = this.chosen();
    this.isFollowing = false;
    clear(this.lines);
    let hits = 0;
    for (const rank of ranks) {
      for (let at = 0; at !== null && hits < MOST_LINES; ) {
        const found = await this.server.get("search", this.query(rank, { find: wanted, at }));
        if (turn !== this.searching) return undefined;
        hits += found.found.length;
        this.lines.append(...found.found.map(([offset, text]) => this.hit(rank, offset, text, wanted.toLowerCase())));
        at = found.then;
        this.note.textContent = `${hits} lines found; ${nameOf(rank)}: looked through ${at === null ? "all" : Math.round((100 * at) / found.size)}${at === null ? "" : " %"}`;
      }
    }
    return undefined;
  }

  hit(rank, offset, text, wanted) {
    const line = lineOf(text, rank, wanted);
    line.prepend(el("button", { type: "button", class: "quiet", text: "show", "aria-label": `Show the log of rank ${rank} at this line`, onclick: () => this.showAt(rank, offset) }));
    return line;
  }

  async showAt(rank, offset) {
    this.searching += 1;
    this.isFollowing = false;
    const found = await this.server.get("log", this.query(rank, { at: offset }));
    this.ranks.value = String(rank);
    this.older.hidden = false;
    this.first = offset;
    clear(this.lines, ...found.lines.map((line) => lineOf(line, null, "")));
    this.lines.scrollTop = 0;
    this.note.textContent = `${nameOf(rank)} from byte ${offset} of ${found.size}`;
  }
}

// The last lines of several logs by the times at which they came, where these are known.
function merged(ranks, windows) {
  const all = windows.flatMap((found, i) => found.lines.map((line, at) => ({ rank: ranks[i], line, at, time: found.times?.[at] ?? Infinity })));
  if (ranks.length > 1) all.sort((one, other) => (one.time === other.time ? 0 : one.time - other.time) || one.rank - other.rank || one.at - other.at);
  return all.map(({ rank, line }) => [rank, line]);
}
