// A line chart on a canvas: zoom, smoothing, logarithmic scale, a cursor for mouse and keyboard, its values as a table.
import { clear, el, shortNumber, table } from "./text.js";

export const COLOURS = ["#3b7dd8", "#e8710a", "#12a36b", "#d93a4a", "#8b5cf6", "#0891b2", "#c026d3", "#6a9a1f", "#b7791f", "#64748b"];
const LEFT = 58, RIGHT = 10, TOP = 10, BOTTOM = 24, HEIGHT = 220, TABLE_ROWS = 400;

export function smoothed(values, weight) {
  if (!weight) return values;
  let mean = 0, share = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    mean = mean * weight + value * (1 - weight);
    share = share * weight + (1 - weight);
    return mean / share;
  });
}

const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000];

export function ticks(least, greatest, wanted, isTime = false) {
  const span = greatest - least;
  if (!(span > 0)) return [least];
  const rough = span / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const round = isTime && rough > 0.5 && rough < TIMES.at(-1) ? TIMES : [1, 2, 5, 10].map((part) => part * power);
  const step = round.find((size) => size >= rough);
  const found = [];
  for (let at = Math.ceil(least / step) * step; at <= greatest + step / 1e6 && found.length < 50; at += step) found.push(Math.abs(at) < step / 1e6 ? 0 : at);
  return found;
}

export class Chart {
  constructor(title, { xText, yText, onZoom }) {
    this.title = title;
    Object.assign(this, { xText, yText, onZoom, lines: [], range: null, smooth: 0, log: false, cursor: null, drag: null, xName: "" });
    this.canvas = el("canvas", { role: "img", tabindex: "0" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.values = el("details", { class: "values" }, el("summary", { text: "Values as a table" }));
    this.values.addEventListener("toggle", () => this.fillTable());
    this.plot = el("div", { class: "plot" }, this.canvas, this.tip);
    this.element = el("figure", { class: "chart" }, el("figcaption", { text: title }), this.plot, this.values);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  listen() {
    const { canvas } = this;
    const at = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse") this.drag = [at(event), at(event)];
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.drag) this.drag[1] = at(event);
      this.moveTo(this.toX(at(event)));
    });
    canvas.addEventListener("pointerleave", () => { this.drag = null; this.moveTo(null); });
    canvas.addEventListener("pointerup", () => this.endDrag());
    canvas.addEventListener("dblclick", () => this.zoom(null));
    canvas.addEventListener("blur", () => this.moveTo(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  endDrag() {
    const drag = this.drag;
    this.drag = null;
    if (drag && Math.abs(drag[1] - drag[0]) > 6) this.zoom([this.toX(Math.min(...drag)), this.toX(Math.max(...drag))]);
    else this.draw();
  }

  key(event) {
    const [first, last] = this.bounds();
    const middle = this.cursor ?? (first + last) / 2, step = (last - first) / 50, half = (last - first) / 2;
    const actions = {
      ArrowLeft: () => this.moveTo(Math.max(first, middle - step)),
      ArrowRight: () => this.moveTo(Math.min(last, middle + step)),
      "+": () => this.zoom([middle - half / 2, middle + half / 2]),
      "-": () => this.zoom([middle - half * 2, middle + half * 2]),
      0: () => this.zoom(null),
      Escape: () => this.zoom(null),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  zoom(range) {
    if (this.onZoom) this.onZoom(range);
    else this.set({ range });
  }

  // Lines: {label, x, y, lo, hi, isBand}; numbers only, NaN where there is none.
  set(changes) {
    Object.assign(this, changes);
    this.describe();
    this.draw();
    if (this.values.open) this.fillTable();
  }

  describe() {
    const shown = this.lines.slice(0, 8).map((line) => `${line.label} ${this.yText(line.y.at(-1))}`);
    const rest = this.lines.length > 8 ? ` and ${this.lines.length - 8} more` : "";
    this.canvas.setAttribute("aria-label", `${this.title} by ${this.xName}; last values: ${shown.join(", ")}${rest}`);
  }

  extent() {
    let first = Infinity, last = -Infinity;
    for (const { x } of this.lines) for (const value of x) if (Number.isFinite(value)) { first = Math.min(first, value); last = Math.max(last, value); }
    if (first > last) return [0, 1];
    return first === last ? [first - 0.5, last + 0.5] : [first, last];
  }

  bounds() {
    return this.range ?? this.extent();
  }

  toX(pixel) {
    const [first, last] = this.bounds();
    const width = this.plot.clientWidth - LEFT - RIGHT;
    return first + (Math.min(Math.max(pixel - LEFT, 0), width) / width) * (last - first);
  }

  limits(drawn) {
    const [first, last] = this.bounds();
    let least = Infinity, greatest = -Infinity;
    for (const { line, y } of drawn) {
      line.x.forEach((x, i) => {
        if (x < first || x > last) return;
        const some = line.isBand ? [line.lo[i], line.hi[i]] : this.smooth ? [y[i]] : [y[i], line.lo?.[i], line.hi?.[i]];
        for (const value of some) {
          if (!Number.isFinite(value) || (this.log && value <= 0)) continue;
          least = Math.min(least, value);
          greatest = Math.max(greatest, value);
        }
      });
    }
    if (least > greatest) return this.log ? [0.1, 1] : [0, 1];
    if (least === greatest) return this.log ? [least / 2, least * 2] : [least - (Math.abs(least) * 0.1 || 0.5), greatest + (Math.abs(least) * 0.1 || 0.5)];
    if (this.log) return [least / 1.1, greatest * 1.1];
    const margin = (greatest - least) * 0.06;
    return [least >= 0 && least - margin < 0 ? 0 : least - margin, greatest + margin];
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1, { canvas } = this;
    if (canvas.width !== Math.round(width * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(HEIGHT * ratio);
      canvas.style.height = `${HEIGHT}px`;
    }
    const pen = canvas.getContext("2d"), css = getComputedStyle(canvas);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, HEIGHT);
    const drawn = this.lines.map((line) => ({ line, y: smoothed(line.y, this.smooth) }));
    const [first, last] = this.bounds(), [least, greatest] = this.limits(drawn), scale = this.log ? Math.log10 : (value) => value;
    const area = { width: width - LEFT - RIGHT, height: HEIGHT - TOP - BOTTOM };
    const toPixelX = (x) => LEFT + ((x - first) / (last - first)) * area.width;
    const toPixelY = (y) => TOP + area.height * (1 - (scale(y) - scale(least)) / (scale(greatest) - scale(least)));
    this.drawGrid(pen, css, { first, last, least, greatest, toPixelX, toPixelY, width });
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, TOP - 2, area.width, area.height + 4);
    pen.clip();
    for (const one of drawn) this.drawLine(pen, one, toPixelX, toPixelY);
    pen.restore();
    this.drawOverlay(pen, css, drawn, toPixelX, toPixelY);
  }

  drawGrid(pen, css, { first, last, least, greatest, toPixelX, toPixelY, width }) {
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = css.getPropertyValue("--quiet");
    pen.strokeStyle = css.getPropertyValue("--line");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const rows = this.log ? logTicks(least, greatest) : ticks(least, greatest, 5);
    for (const value of rows) {
      const y = Math.round(toPixelY(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, y);
      pen.lineTo(width - RIGHT, y);
      pen.stroke();
      pen.fillText(this.yText(value), LEFT - 6, y);
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const value of ticks(first, last, Math.max(2, Math.floor(width / 120)), this.xName === "time")) {
      const x = toPixelX(value);
      if (x > LEFT - 1 && x < width - 12) pen.fillText(this.xText(value), x, HEIGHT - BOTTOM + 8);
    }
  }

  drawLine(pen, { line, y }, toPixelX, toPixelY) {
    const usable = (value) => Number.isFinite(value) && (!this.log || value > 0);
    pen.lineJoin = "round";
    if (line.lo && line.hi && (line.isBand || !this.smooth)) {
      pen.fillStyle = line.colour;
      pen.globalAlpha = line.isBand ? 0.16 : 0.13;
      const points = line.x.map((x, i) => [x, line.lo[i], line.hi[i]]).filter((point) => point.every(Number.isFinite) && usable(point[1]));
      pen.beginPath();
      for (const [x, , high] of points) pen.lineTo(toPixelX(x), toPixelY(high));
      for (const [x, low] of points.reverse()) pen.lineTo(toPixelX(x), toPixelY(low));
      pen.fill();
    }
    if (this.smooth && !line.isBand) this.stroke(pen, line, line.y, 0.22, 1, usable, toPixelX, toPixelY);
    this.stroke(pen, line, y, 1, line.isBand ? 2 : 1.6, usable, toPixelX, toPixelY);
    pen.globalAlpha = 1;
    pen.strokeStyle = "#d93a4a";
    line.y.forEach((value, i) => {
      if (Number.isFinite(value)) return;
      const x = toPixelX(line.x[i]), foot = HEIGHT - BOTTOM - 6;
      pen.beginPath();
      pen.moveTo(x - 3, foot - 3);
      pen.lineTo(x + 3, foot + 3);
      pen.moveTo(x - 3, foot + 3);
      pen.lineTo(x + 3, foot - 3);
      pen.stroke();
    });
  }

  stroke(pen, line, values, alpha, width, usable, toPixelX, toPixelY) {
    pen.globalAlpha = alpha;
    pen.strokeStyle = line.colour;
    pen.fillStyle = line.colour;
    pen.lineWidth = width;
    pen.beginPath();
    let isDown = false, count = 0;
    values.forEach((value, i) => {
      if (!usable(value) || !Number.isFinite(line.x[i])) { isDown = false; return; }
      const x = toPixelX(line.x[i]), y = toPixelY(value);
      if (isDown) pen.lineTo(x, y); else pen.moveTo(x, y);
      isDown = true;
      count += 1;
    });
    pen.stroke();
    if (count !== 1) return;
    const only = values.findIndex((value, i) => usable(value) && Number.isFinite(line.x[i]));
    pen.beginPath();
    pen.arc(toPixelX(line.x[only]), toPixelY(values[only]), 3, 0, 7);
    pen.fill();
  }

  drawOverlay(pen, css, drawn, toPixelX, toPixelY) {
    if (this.drag) {
      pen.fillStyle = css.getPropertyValue("--choice");
      pen.fillRect(Math.min(...this.drag), TOP, Math.abs(this.drag[1] - this.drag[0]), HEIGHT - TOP - BOTTOM);
    }
    this.tip.hidden = this.cursor === null || !drawn.length;
    if (this.tip.hidden) return;
    const near = drawn.map(({ line, y }) => ({ line, y, i: nearest(line.x, this.cursor) })).filter(({ i }) => i >= 0);
    if (!near.length) { this.tip.hidden = true; return; }
    const x = near[0].line.x[near[0].i], pixel = toPixelX(x);
    pen.strokeStyle = css.getPropertyValue("--quiet");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(pixel, TOP);
    pen.lineTo(pixel, HEIGHT - BOTTOM);
    pen.stroke();
    const rows = near.slice(0, 12).map(({ line, y, i }) => {
      const dot = el("span", { class: "dot" });
      dot.style.background = line.colour;
      return el("div", {}, dot, `${line.label} `, el("b", { text: this.yText(y[i]) }));
    });
    clear(this.tip, el("div", { class: "quiet", text: `${this.xName} ${this.xText(x)}` }), ...rows, near.length > 12 ? el("div", { class: "quiet", text: `and ${near.length - 12} more` }) : null);
    const isRight = pixel > this.plot.clientWidth / 2;
    this.tip.style.left = isRight ? "auto" : `${pixel + 12}px`;
    this.tip.style.right = isRight ? `${this.plot.clientWidth - pixel + 12}px` : "auto";
  }

  moveTo(x) {
    this.cursor = x;
    this.draw();
  }

  fillTable() {
    if (!this.values.open) return;
    const shown = this.lines.slice(0, 16), rows = [];
    for (const line of shown) {
      const every = Math.max(1, Math.ceil((line.x.length * shown.length) / TABLE_ROWS));
      line.x.forEach((x, i) => {
        if (i % every === 0 || i === line.x.length - 1) rows.push([line.label, this.xText(x), shortNumber(line.y[i])]);
      });
    }
    clear(this.values, this.values.firstChild, table(["curve", this.xName, this.title], rows, `Values of ${this.title}`));
  }
}

function logTicks(least, greatest) {
  const found = [];
  for (let power = Math.floor(Math.log10(least)); power <= Math.ceil(Math.log10(greatest)); power += 1) {
    for (const part of Math.log10(greatest / least) < 2 ? [1, 2, 5] : [1]) {
      const value = part * 10 ** power;
      if (value >= least && value <= greatest) found.push(value);
    }
  }
  return found.length > 1 && found.length < 12 ? found : [least, greatest];
}

// The place of the value nearest to a wanted one; x may hold NaN, and be out of order where a job began again.
function nearest(x, wanted) {
  let best = -1;
  x.forEach((value, i) => {
    if (Number.isFinite(value) && (best < 0 || Math.abs(value - wanted) < Math.abs(x[best] - wanted))) best = i;
  });
  return best;
}
