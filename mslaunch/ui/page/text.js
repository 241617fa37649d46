// Elements, numbers and times as text. Nothing here or elsewhere in the page makes HTML from a text.

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function clear(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const BYTES = /^(memory|memory_used|memory_total|disk_free|disk_total)$/;
const BYTE_RATES = /^(read_rate|write_rate|swap_rate|net_received|net_sent)$/;
const UNITS = { step_time: "s", utilisation: "%", temperature: "°C", power: "W", throughput: "/s" };

export function toNumber(value) {
  if (typeof value === "number") return value;
  return { nan: NaN, inf: Infinity, "-inf": -Infinity }[value] ?? NaN;
}

export function shortNumber(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "inf" : "-inf";
  if (Number.isSafeInteger(value)) return String(value);  // a step is never rounded
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e7) return value.toExponential(3).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(5)));
}

// The size and the name of the unit in which so many bytes are written.
export function byteScale(value) {
  let size = 1;
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (Math.abs(value) / size < 999.5) return [size, unit];
    size *= 1000;
  }
  return [size, "TB"];
}

export function byteText(value) {
  if (!Number.isFinite(value)) return shortNumber(value);
  const [size, unit] = byteScale(value);
  return `${Number((value / size).toPrecision(3))} ${unit}`;
}

// Whether a number counts bytes, and what is written after it.
export function unitOf(name) {
  return [BYTES.test(name) || BYTE_RATES.test(name), BYTE_RATES.test(name) ? "/s" : UNITS[name] ?? ""];
}

export function valueText(name, value) {
  if (value === null || value === undefined) return "";
  const number = toNumber(value), [isBytes, unit] = unitOf(name);
  if (isBytes) return `${byteText(number)}${unit}`;
  return unit ? `${shortNumber(number)} ${unit}` : shortNumber(number);
}

// How far a rank is: its steps over all epochs where they are known, else epoch and batch.
export function stepText(values = {}) {
  if (values.total_step !== undefined) return valueText("step", values.total_step);
  const of = (name, whole) => (values[name] === undefined ? null : `${valueText(name, values[name])}${values[whole] > 0 ? `/${valueText(name, values[whole])}` : ""}`);
  const epoch = of("epoch", "epochs"), step = of("step", "steps");
  if (epoch === null) return step ?? "";
  const named = epoch.includes("/") ? epoch : `epoch ${epoch}`;
  return step === null ? named : `${named} · ${step}`;
}

export function silenceText(seconds) {
  return `no step for ${durationText(seconds)}`;
}

export function durationText(seconds) {
  if (!Number.isFinite(seconds)) return "";
  const total = Math.abs(seconds), sign = seconds < 0 ? "-" : "";
  if (total < 60) return `${sign}${Number(total.toFixed(total < 10 ? 2 : 1))} s`;
  const minutes = Math.floor(total / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  const both = (large, name, small, other) => `${sign}${large} ${name}${small ? ` ${small} ${other}` : ""}`;
  if (minutes < 60) return both(minutes, "min", Math.floor(total % 60), "s");
  if (hours < 48) return both(hours, "h", minutes % 60, "min");
  return both(days, "d", hours % 24, "h");
}

export function dateText(value) {
  const date = typeof value === "number" ? new Date(value * 1000) : new Date(value);
  return Number.isNaN(date.getTime()) ? "" : date.toLocaleString(undefined, { hour12: false });
}

// "0,2-3" as a function that says whether a rank is meant; null where the text is no such list.
export function rankFilter(text) {
  const parts = text.split(",").map((part) => part.trim()).filter(Boolean);
  const ranges = parts.map((part) => /^(\d{1,9})(?:-(\d{1,9}))?$/.exec(part));
  if (ranges.some((found) => !found)) return null;
  if (!ranges.length) return () => true;
  return (rank) => ranges.some(([, first, last]) => rank >= Number(first) && rank <= Number(last ?? first));
}

export function badge(state) {
  return el("span", { class: `badge ${state}`, text: state });
}

export function section(id, title, ...children) {
  const heading = el("h2", { id: `${id}-title`, text: title });
  return el("section", { id, "aria-labelledby": `${id}-title` }, heading, ...children);
}

// `kinds` are the classes of the columns.
export function table(names, rows, caption, kinds = []) {
  const head = el("tr", {}, ...names.map((name, i) => el("th", { scope: "col", text: name, class: kinds[i] })));
  const body = rows.map((row) => el("tr", {}, ...row.map((cell, i) => el("td", { class: kinds[i] }, cell instanceof Node ? cell : String(cell ?? "")))));
  const made = el("table", {}, caption ? el("caption", { text: caption }) : null, el("thead", {}, head), el("tbody", {}, ...body));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption ?? names.join(", ") }, made);
}

// Fills an element anew where its content has changed; what was scrolled stays where it was.
export function refresh(element, content, make) {
  const key = JSON.stringify(content);
  if (element.shownContent === key) return;
  element.shownContent = key;
  const top = element.querySelector(".scroll")?.scrollTop ?? 0;
  clear(element, ...make());
  if (top) element.querySelector(".scroll")?.scrollTo(0, top);
}

export function labelled(text, control) {
  return el("label", {}, el("span", { text }), control);
}

export function stored(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(name);
    localStorage.setItem(name, value);
  } catch {
    // A page that may keep nothing forgets the choice, and works.
  }
  return null;
}
