// Ticks of an axis and their texts: round numbers, with as many digits as their distance needs.
import { byteScale, durationText, unitOf, valueText } from "./text.js";

const DAY = 86400;
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].map((days) => days * DAY)];

// Distances that a person can count in, from a rough one on.
function sizes(rough, kind) {
  if (kind === "time" && rough > 0.5) return TIMES.filter((size) => size >= rough);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10, 20, 50].map((part) => part * power).filter((size) => size >= rough * 0.999 && (kind !== "step" || size >= 1));
}

// At most so many ticks and at least two: where there are no two round numbers, the first and the last one.
export function ticks(least, greatest, most, kind = "") {
  const span = greatest - least;
  if (!(span > 0)) return [least];
  for (const size of sizes(span / most, kind)) {
    const found = [];
    for (let at = Math.ceil(least / size - 1e-6); at * size <= greatest + size / 1e6 && found.length <= most; at += 1) found.push(at * size);
    if (found.length <= most) return found.length > 1 ? found : [least, greatest];
  }
  return [least, greatest];
}

function fixed(value, distance, largest) {
  if (value === 0) return "0";
  const digits = Math.floor(Math.log10(distance) + 1e-9);
  if (largest < 1e-3 || largest >= 1e7) return value.toExponential(Math.min(8, Math.max(0, Math.floor(Math.log10(Math.abs(value)) + 1e-9) - digits)));
  return value.toFixed(Math.min(12, Math.max(0, -digits)));
}

// The texts of ticks, which differ where the ticks do.
export function axisTexts(name, values) {
  const [isBytes, unit] = unitOf(name), largest = Math.max(...values.map(Math.abs));
  const [size, prefix] = isBytes ? byteScale(largest) : [1, ""];
  const distance = Math.min(...values.slice(1).map((value, i) => Math.abs(value - values[i]))) / size;
  if (!(distance > 0 && distance < Infinity)) return values.map((value) => valueText(name, value));
  return values.map((value) => `${fixed(value / size, distance, largest / size)}${prefix || unit ? ` ${prefix}${unit}` : ""}`);
}

export function placeTexts(kind, values) {
  return values.map((value) => (kind === "time" ? durationText(value) : String(Math.round(value * 1e6) / 1e6)));
}
