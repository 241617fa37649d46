// A line chart on a canvas: zoom, smoothing, logarithmic scale, a cursor for mouse and keyboard, its values as a table.
import { axisTexts, placeTexts, ticks } from "./axes.js";
import { clear, el, shortNumber, table, unitOf } from "./text.js";

const RIGHT = 10, TOP = 10, BOTTOM = 38, HEIGHT = 234, TABLE_ROWS = 400;
const LEAST_SPAN = 0.02;  // of a number of bytes: what varies less is a straight line

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

export class Chart {
  constructor(title, name, { xText, yText, onZoom }) {
    Object.assign(this, { title, name, xText, yText, onZoom, lines: [], range: null, smooth: 0, log: false, cursor: null, drag: null, xName: "", until: null, left: 58 });
    this.canvas = el("canvas", { role: "img", tabindex: "0" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.status = el("span", { class: "hidden", role: "status" });
    this.values = el("details", { class: "values" }, el("summary", { text: "Values as a table" }));
    this.values.addEventListener("toggle", () => this.fillTable());
    this.plot = el("div", { class: "plot" }, this.canvas, this.tip, this.status);
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
    this.status.textContent = this.tip.hidden ? "" : [...this.tip.children].map((row) => row.textContent).join(", ");
  }

  zoom(range) {
    if (this.onZoom) this.onZoom(range);
    else this.set({ range });
  }

  // Lines: {label, x, y, lo, hi, isBand, colour, dash}; numbers only, NaN where there is none.
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
    if (this.xName === "time" && this.until !== null) last = Math.max(last, this.until);
    return first === last ? [first - 0.5, last + 0.5] : [first, last];
  }

  bounds() {
    return this.range ?? this.extent();
  }

  toX(pixel) {
    const [first, last] = this.bounds();
    const width = this.plot.clientWidth - this.left - RIGHT;
    return first + (Math.min(Math.max(pixel - this.left, 0), width) / width) * (last - first);
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
    if (this.log) return least === greatest ? [least / 2, least * 2] : [least / 1.1, greatest * 1.1];
    const size = Math.max(Math.abs(least), Math.abs(greatest)), narrowest = unitOf(this.name)[0] ? size * LEAST_SPAN : 0;
    const margin = least === greatest ? size * 0.1 || 1 : Math.max((greatest - least) * 0.06, (narrowest - (greatest - least)) / 2);
    return [least >= 0 ? Math.max(0, least - margin) : least - margin, greatest + margin];
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
    const rows = this.rows(pen, least, greatest);
    const area = { width: width - this.left - RIGHT, height: HEIGHT - TOP - BOTTOM };
    const toPixelX = (x) => this.left + ((x - first) / (last - first)) * area.width;
    const toPixelY = (y) => TOP + area.height * (1 - (scale(y) - scale(least)) / (scale(greatest) - scale(least)));
    this.drawGrid(pen, css, { rows, first, last, toPixelX, toPixelY, width });
    pen.save();
    pen.beginPath();
    pen.rect(this.left, TOP - 2, area.width, area.height + 4);
    pen.clip();
    for (const one of drawn) this.drawLine(pen, one, toPixelX, toPixelY);
    for (const { line, y } of drawn) if (line.isBand) this.stroke(pen, line, y, 1, 2.5, Number.isFinite, toPixelX, toPixelY);  // above the ranks
    pen.restore();
    this.drawOverlay(pen, css, drawn, toPixelX, toPixelY);
  }

  // The ticks of the values with their texts; the plot begins where the longest of them ends.
  rows(pen, least, greatest) {
    pen.font = "11px system-ui, sans-serif";
    const values = this.log ? logTicks(least, greatest) : ticks(least, greatest, 6);
    const texts = this.log ? values.map(this.yText) : axisTexts(this.name, values);
    this.left = Math.max(40, Math.ceil(Math.max(...texts.map((text) => pen.measureText(text).width))) + 12);
    return values.map((value, i) => [value, texts[i]]);
  }

  drawGrid(pen, css, { rows, first, last, toPixelX, toPixelY, width }) {
    pen.fillStyle = css.getPropertyValue("--quiet");
    pen.strokeStyle = css.getPropertyValue("--line");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const [value, text] of rows) {
      const y = Math.round(toPixelY(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(this.left, y);
      pen.lineTo(width - RIGHT, y);
      pen.stroke();
      pen.fillText(text, this.left - 6, y);
    }
    this.drawPlaces(pen, first, last, toPixelX, width);
  }

  drawPlaces(pen, first, last, toPixelX, width) {
    const places = ticks(first, last, Math.max(2, Math.floor((width - this.left) / 75)), this.xName), texts = placeTexts(this.xName, places);
    pen.textAlign = "center";
    pen.textBaseline = "top";
    let end = -Infinity;
    places.forEach((place, i) => {
      const half = pen.measureText(texts[i]).width / 2, x = Math.min(Math.max(toPixelX(place), half), width - half);
      if (x - half < end + 6 || texts[i] === texts[i - 1]) return;
      pen.fillText(texts[i], x, HEIGHT - BOTTOM + 7);
      end = x + half;
    });
    pen.textAlign = "right";
    pen.fillText(this.xName, width - RIGHT, HEIGHT - BOTTOM + 22);
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
    pen.setLineDash(line.dash ?? []);
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
    pen.setLineDash([]);
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
