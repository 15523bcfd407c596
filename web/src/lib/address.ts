/** The part of the page's state that a link carries: written into the address after "#". */

import type { Scale, Zoom } from "./chart";

export interface Place {
  runs: string[];
  tab: string;
  /** Null: follow the newest. */
  step: number | null;
  zoom: Zoom | null;
  scope: string;
  smoothing: number;
  xscale: Scale | null;
  /** By instrument. */
  yscales: Record<string, Scale>;
  layout: "overlay" | "side";
}

export const START: Place = {
  runs: [],
  tab: "",
  step: null,
  zoom: null,
  scope: "",
  smoothing: 0.6,
  xscale: null,
  yscales: {},
  layout: "overlay",
};

const SCALES = ["linear", "log", "symlog"];

/** The place as "#…"; what is as at the start is left out. */
export function written(place: Place): string {
  const parts = new URLSearchParams();
  if (place.runs.length) parts.set("runs", place.runs.join("."));
  if (place.tab) parts.set("tab", place.tab);
  if (place.step !== null) parts.set("step", String(place.step));
  if (place.zoom) parts.set("zoom", `${place.zoom.first}~${place.zoom.last}`);
  if (place.scope) parts.set("scope", place.scope);
  if (place.smoothing !== START.smoothing) parts.set("smooth", String(place.smoothing));
  if (place.xscale) parts.set("x", place.xscale);
  for (const [name, scale] of Object.entries(place.yscales)) parts.append("y", `${name}:${scale}`);
  if (place.layout !== START.layout) parts.set("layout", place.layout);
  const text = parts.toString();
  return text ? `#${text}` : "";
}

/** The place an address stands for; whatever cannot be understood is as at the start. */
export function read(hash: string): Place {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const [first, last] = (parts.get("zoom") ?? "").split("~").map(number);
  const x = parts.get("x");
  const yscales: Record<string, Scale> = {};
  for (const part of parts.getAll("y")) {
    const [name, scale] = part.split(":");
    if (name && isScale(scale)) yscales[name] = scale;
  }
  const smoothing = number(parts.get("smooth"));
  return {
    runs: (parts.get("runs") ?? "").split(".").filter(Boolean),
    tab: parts.get("tab") ?? "",
    step: number(parts.get("step")),
    zoom: first != null && last != null && first < last ? { first, last } : null,
    scope: parts.get("scope") ?? "",
    smoothing: smoothing === null ? START.smoothing : Math.min(0.99, Math.max(0, smoothing)),
    xscale: isScale(x) ? x : null,
    yscales,
    layout: parts.get("layout") === "side" ? "side" : "overlay",
  };
}

/** Put a place into the address bar, without a new entry in the history. */
export function put(hash: string): void {
  if (hash === location.hash) return;
  try {
    history.replaceState(history.state, "", hash || location.pathname + location.search);
  } catch {
    // A frame made from text, as in a notebook, has no address that could be changed.
  }
}

function isScale(text: string | null | undefined): text is Scale {
  return SCALES.includes(text ?? "");
}

function number(text: string | null): number | null {
  if (text === null || text.trim() === "") return null;
  const value = Number(text);
  return Number.isFinite(value) && value >= 0 ? value : null;
}
