/** Scales of axes: how values become distances, where ticks stand, and how numbers are written. */

import type { Scale } from "./chart";

/** Maps values to a straight line and back; `forward` gives NaN where the scale has no place for a value. */
export interface Transform {
  scale: Scale;
  linear: number;
  forward(value: number): number;
  backward(place: number): number;
}

export interface Tick {
  at: number;
  label: string;
}

/** The transform of a scale; `linear` is the half-width of the linear part of a symlog scale. */
export function transform(scale: Scale, linear = 1): Transform {
  if (scale === "log") {
    return {
      scale,
      linear,
      forward: (value) => (value > 0 ? Math.log10(value) : NaN),
      backward: (place) => 10 ** place,
    };
  }
  if (scale === "symlog") {
    const width = linear > 0 ? linear : 1;
    return {
      scale,
      linear: width,
      // asinh is linear around zero and logarithmic far from it, without a corner between the two.
      forward: (value) => Math.asinh(value / width),
      backward: (place) => Math.sinh(place) * width,
    };
  }
  return { scale, linear, forward: (value) => value, backward: (place) => place };
}

/** About `count` ticks from `low` to `high` (values, not places), ascending; `whole`: at integers only. */
export function ticks(map: Transform, low: number, high: number, count: number, whole = false): Tick[] {
  if (!(high > low)) return [];
  const inside = map.scale === "symlog" && Math.max(Math.abs(low), Math.abs(high)) <= 2 * map.linear;
  if (map.scale === "linear" || inside) return linearTicks(low, high, count, whole);
  const least = (map.forward(high) - map.forward(low)) / (1.6 * Math.max(2, count));
  for (const candidates of decades(map, low, high, least, whole)) {
    const apart = candidates.every(
      (value, index) => index === 0 || map.forward(value) - map.forward(candidates[index - 1]!) >= least,
    );
    if (apart && candidates.length >= 2)
      return candidates.map((at) => ({ at, label: formatTick(at, at || 1) }));
  }
  return linearTicks(low, high, count, whole);
}

function linearTicks(low: number, high: number, count: number, whole: boolean): Tick[] {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) ?? 10);
  if (whole) step = Math.max(1, Math.round(step));
  const found: Tick[] = [];
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  for (let index = first; index <= last && found.length < 100; index++) {
    // Multiplying and rounding keeps 0.3 from becoming 0.30000000000000004.
    const at = Number((index * step).toPrecision(12));
    found.push({ at, label: formatTick(at, step) });
  }
  // One number does not tell a scale.
  return found.length < 2 && count < 32 && !(whole && step === 1)
    ? linearTicks(low, high, 2 * count, whole)
    : found;
}

/** Lists of round numbers in the range, the densest first; `least` is how far apart places should be. */
function* decades(
  map: Transform,
  low: number,
  high: number,
  least: number,
  whole: boolean,
): Generator<number[]> {
  const symmetric = map.scale === "symlog";
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const smallest = symmetric ? map.linear : low;
  const bottom = Math.floor(Math.log10(smallest) + (symmetric ? 0.5 : 0));
  const top = Math.ceil(Math.log10(largest));
  for (const [factors, stride] of strides(top - bottom)) {
    const positive: number[] = [];
    for (let power = Math.ceil(bottom / stride) * stride; power <= top; power += stride) {
      for (const factor of factors) positive.push(Number(`${factor}e${power}`));
    }
    const all = symmetric ? [...positive.map((value) => -value).reverse(), 0, ...positive] : positive;
    yield all.filter(
      (value) =>
        value >= low * (1 - Math.sign(low) * 1e-9) &&
        value <= high &&
        (!whole || value % 1 === 0) &&
        // Numbers next to zero would stand on its label.
        (!symmetric || value === 0 || Math.abs(map.forward(value)) >= least),
    );
  }
}

function* strides(span: number): Generator<[number[], number]> {
  yield [[1, 2, 5], 1];
  yield [[1, 3], 1];
  for (let stride = 1; stride <= Math.max(1, span); stride++) yield [[1], stride];
}

const SUFFIXES = ["", "k", "M", "G", "T"];

/** A number beside a tick, with as many digits as neighbours at a distance of `step` need. */
export function formatTick(value: number, step: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const exponent = Math.floor(Math.log10(size) + 1e-12);
  const unit = Math.floor(Math.log10(Math.abs(step)) + 1e-12);
  if (exponent < -3 || exponent >= 15) {
    return minus(value.toExponential(Math.min(20, Math.max(0, exponent - unit))).replace("e+", "e"));
  }
  const thousands = size >= 1e4 - 1e-9 || Math.abs(step) >= 1000 ? Math.floor(exponent / 3) : 0;
  const digits = Math.min(20, Math.max(0, 3 * thousands - unit));
  return minus((value / 1000 ** thousands).toFixed(digits) + SUFFIXES[thousands]);
}

/** A number to be read off: four significant digits, whole numbers in full up to a million. */
export function formatValue(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "not finite";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) {
    return minus(
      value
        .toExponential(3)
        .replace(/\.?0+e/, "e")
        .replace("e+", "e"),
    );
  }
  if (value % 1 === 0) return minus(grouped(value));
  const text = value.toPrecision(4);
  // toPrecision writes 12345.6 as 1.235e+4.
  return minus(
    text.includes("e") ? grouped(Math.round(value)) : text.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, ""),
  );
}

/** A whole number with thin spaces between thousands: 12 345. */
function grouped(value: number): string {
  return Math.abs(value) < 1e4 ? String(value) : String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** The sign of print, as wide as a digit. */
function minus(text: string): string {
  return text.replaceAll("-", "\u2212");
}

/**
 * The places (after `forward`) an axis runs over: all values with a margin, never empty.
 *
 * Guides are let in if the values then still fill half of the axis; `zero`: heights begin there.
 */
export function span(
  map: Transform,
  columns: readonly (readonly (number | null)[])[],
  { guides = [], margin = 0.06, zero = false }: { guides?: number[]; margin?: number; zero?: boolean } = {},
): [number, number] | null {
  let low = Infinity;
  let high = -Infinity;
  for (const column of columns) {
    for (const value of column) {
      if (value === null) continue;
      const place = map.forward(value);
      if (place < low) low = place;
      if (place > high) high = place;
    }
  }
  if (low > high) return null;
  if (zero && map.scale !== "log") [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  const width = Math.max(high - low, least(map, low, high));
  for (const guide of guides) {
    const place = map.forward(guide);
    if (place < low && low - place <= width) low = place;
    if (place > high && place - high <= width) high = place;
  }
  if (high - low < least(map, low, high)) {
    const centre = (low + high) / 2;
    const half = map.scale === "linear" ? Math.max(Math.abs(centre) * 0.1, 1e-12) : 0.3;
    return [centre - half, centre + half];
  }
  const extra = (high - low) * margin;
  // The smallest bar of a logarithmic axis has to be seen, too.
  if (zero && map.scale === "log") return [low - extra - 0.2, high + extra];
  return [zero && low === 0 ? 0 : low - extra, zero && high === 0 ? 0 : high + extra];
}

/** The least difference that is more than rounding. */
function least(map: Transform, low: number, high: number): number {
  return map.scale === "linear" ? 1e-9 * Math.max(Math.abs(low), Math.abs(high), 1e-300) : 1e-6;
}
