// The heat map: how long a step took, a row for each rank (or for some of them together), columns of equal time.
import { clear, durationText, el, table, valueText } from "./text.js";

const ROW = 12, HEAD = 7, FOOT = 18, LABELS = 58;  // above the first row there is room for half of its label
const LEAST_SPREAD = 1.5;  // red is at least so much slower than blue: equal ranks have equal colours
const RAMP = [[38, 84, 150], [30, 140, 150], [110, 190, 110], [240, 200, 70], [220, 70, 50]];

function colourOf(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1), low = Math.min(Math.floor(at), RAMP.length - 2);
  const mixed = RAMP[low].map((part, i) => Math.round(part + (RAMP[low + 1][i] - part) * (at - low)));
  return `rgb(${mixed.join(",")})`;
}

export class HeatMap {
  constructor() {
    this.canvas = el("canvas", { role: "img", tabindex: "0" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.status = el("span", { class: "hidden", role: "status" });
    this.scale = el("p", { class: "quiet" });
    this.plot = el("div", { class: "plot" }, this.canvas, this.tip, this.status);
    this.values = el("div");
    this.element = el("div", {}, this.scale, this.plot, el("details", { class: "values" }, el("summary", { text: "Values as a table" }), this.values));
    this.place = null;
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.moveTo(null));
    this.canvas.addEventListener("blur", () => this.moveTo(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  // `until` is where the time ends at least: now, of a run that goes on.
  show(heat, until = null) {
    this.heat = heat;
    this.until = Math.max(heat?.last ?? 0, until ?? 0);
    this.element.hidden = !heat;
    if (!heat) return;
    const all = heat.cells.flat().filter((value) => value !== null).sort((one, other) => one - other);
    this.low = all[Math.floor(all.length * 0.02)];
    this.high = Math.max(all[Math.ceil(all.length * 0.98) - 1], this.low * LEAST_SPREAD);
    this.scale.textContent = `Seconds a step, from ${valueText("step_time", this.low)} (blue) to ${valueText("step_time", this.high)} (red).`;
    this.canvas.setAttribute("aria-label", `Step times of ranks ${heat.rows[0]} to ${heat.rows.at(-1)} over time; ${this.scale.textContent}`);
    clear(this.values, table(["ranks", "mean", "greatest"], heat.rows.map((name, i) => this.summary(name, heat.cells[i])), "Step times by rank"));
    this.draw();
  }

  summary(name, row) {
    const known = row.filter((value) => value !== null);
    if (!known.length) return [name, "", ""];
    return [name, valueText("step_time", known.reduce((sum, value) => sum + value, 0) / known.length), valueText("step_time", Math.max(...known))];
  }

  get rowHeight() {
    return this.heat.rows.length > 40 ? ROW / 2 : this.heat.rows.length > 12 ? ROW : ROW * 1.5;
  }

  // The width of a column: what came after the last step stays empty.
  get cell() {
    const { first, last, cells } = this.heat, share = last > first ? (last - first) / (this.until - first) : 1;
    return ((this.plot.clientWidth - LABELS) * share) / cells[0].length;
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!this.heat || !width) return;
    const { heat, rowHeight } = this, height = HEAD + heat.rows.length * rowHeight + FOOT, ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d"), css = getComputedStyle(this.canvas);
    pen.scale(ratio, ratio);
    const { cell } = this;
    heat.cells.forEach((row, at) => row.forEach((value, column) => {
      if (value === null) return;
      pen.fillStyle = colourOf((value - this.low) / (this.high - this.low || 1));
      pen.fillRect(LABELS + column * cell, HEAD + at * rowHeight, Math.ceil(cell), rowHeight - (rowHeight > 8 ? 1 : 0));
    }));
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = css.getPropertyValue("--quiet");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const every = Math.ceil(14 / rowHeight);
    heat.rows.forEach((name, at) => { if (at % every === 0) pen.fillText(name, LABELS - 6, HEAD + (at + 0.5) * rowHeight, LABELS - 8); });
    pen.textBaseline = "bottom";
    pen.textAlign = "left";
    pen.fillText(durationText(heat.first), LABELS, height);
    pen.textAlign = "right";
    pen.fillText(durationText(this.until), width, height);
    this.drawPlace(pen, css, cell);
  }

  drawPlace(pen, css, cell) {
    this.tip.hidden = !this.place;
    if (!this.place) return;
    const [row, column] = this.place, value = this.heat.cells[row][column];
    pen.strokeStyle = css.color;
    pen.lineWidth = 1.5;
    pen.strokeRect(LABELS + column * cell, HEAD + row * this.rowHeight, Math.max(cell, 3), this.rowHeight);
    const time = this.heat.first + ((column + 0.5) / this.heat.cells[0].length) * (this.heat.last - this.heat.first);
    clear(this.tip, el("div", { text: `rank ${this.heat.rows[row]} at ${durationText(time)}` }), el("b", { text: value === null ? "nothing told" : valueText("step_time", value) }));
    const pixel = LABELS + column * cell, isRight = pixel > this.plot.clientWidth / 2;
    this.tip.style.left = isRight ? "auto" : `${pixel + 12}px`;
    this.tip.style.right = isRight ? `${this.plot.clientWidth - pixel + 12}px` : "auto";
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect(), columns = this.heat.cells[0].length;
    const column = Math.floor((event.clientX - box.left - LABELS) / this.cell);
    const row = Math.floor((event.clientY - box.top - HEAD) / this.rowHeight);
    this.moveTo(column >= 0 && column < columns && row >= 0 && row < this.heat.rows.length ? [row, column] : null);
  }

  key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!moves[event.key]) return;
    event.preventDefault();
    const [row, column] = this.place ?? [0, 0], [down, right] = moves[event.key];
    const bound = (value, most) => Math.min(Math.max(value, 0), most - 1);
    this.moveTo([bound(row + down, this.heat.rows.length), bound(column + right, this.heat.cells[0].length)]);
    this.status.textContent = [...this.tip.children].map((part) => part.textContent).join(": ");
  }

  moveTo(place) {
    this.place = place;
    this.draw();
  }
}
