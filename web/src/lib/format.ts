/** Numbers and times as people read them. */

const MINUS = "\u2212";

/** About three significant digits: 0.0312, 12.4, 1,250, 3.1e−7; an en dash for what is not there. */
export function brief(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6))
    return value.toExponential(1).replace("e+", "e").replaceAll("-", MINUS);
  if (Number.isInteger(value) || size >= 1000) return Math.round(value).toLocaleString("en").replace("-", MINUS);
  return Number(value.toPrecision(3)).toString().replace("-", MINUS);
}

export function whole(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

/** A share as a percentage: 0.034 is 3.4 %. */
export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return "–";
  const value = 100 * share;
  return `${value !== 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

/** Seconds as 42 s, 3 m 05 s, 2 h 10 m, 4 d 6 h. */
export function duration(seconds: number | null): string {
  if (seconds === null || !Number.isFinite(seconds) || seconds < 0) return "–";
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** A moment of unix time as day and time, in the reader's own zone. */
export function clock(seconds: number | null): string {
  if (seconds === null) return "";
  return new Date(seconds * 1000).toLocaleString("en-GB", {
    day: "numeric",
    month: "short",
    hour: "2-digit",
    minute: "2-digit",
  });
}

/** Any setting as text. */
export function setting(value: unknown): string {
  if (value === null || value === undefined) return "–";
  return typeof value === "number" ? brief(value) : typeof value === "object" ? JSON.stringify(value) : String(value);
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}
