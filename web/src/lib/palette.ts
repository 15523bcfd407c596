/** Colours: tones, runs, columns of the screen and heat maps, for the dark and the light theme. */

import type { Theme, Tone } from "./chart";

export interface Column {
  /** Fill of the heading. */
  ground: string;
  /** Text on `ground`. */
  text: string;
  /** The hue as text or rule on the page's own ground. */
  ink: string;
}

export interface Palette {
  /** Ground of the panels the plots stand on. */
  panel: string;
  /** Labels of axes and guides. */
  text: string;
  /** Numbers to be read first. */
  strong: string;
  /** Lines of the grid. */
  grid: string;
  /** Frame lines and the pointer's cross-hair. */
  rule: string;
  tones: Record<Tone, string>;
  /** One for each run; they differ in lightness too, so that they stay apart for the colour-blind. */
  runs: readonly string[];
}

const DARK: Palette = {
  panel: "#141a22",
  text: "#a9b6c6",
  strong: "#eef3f9",
  grid: "#222b37",
  rule: "#445164",
  tones: {
    first: "#5c9df5",
    second: "#ffa040",
    third: "#76e0ac",
    fourth: "#cfb2ff",
    neutral: "#a9b6c6",
    faint: "#697789",
    good: "#3fc3a0",
    bad: "#f9465f",
  },
  runs: ["#6fb3ff", "#d09a00", "#14a08a", "#f2ea3e", "#7d6edd", "#cc5a12", "#f4b3bb", "#cdf5f2"],
};

const LIGHT: Palette = {
  panel: "#ffffff",
  text: "#4b5768",
  strong: "#141a22",
  grid: "#e9edf2",
  rule: "#b4bfcc",
  tones: {
    first: "#2a55b0",
    second: "#d2550f",
    third: "#16876f",
    fourth: "#955ce0",
    neutral: "#4b5768",
    faint: "#8592a3",
    good: "#0d7d68",
    bad: "#a80f22",
  },
  runs: ["#2a8fe6", "#b04a00", "#0f6f6c", "#979400", "#1b2f9e", "#6a2a08", "#c66f9d", "#232a42"],
};

export const palettes: Record<Theme, Palette> = { dark: DARK, light: LIGHT };

/** The columns of the screens by the group of their instruments; hues as in the paper. */
export const columns: Record<Theme, Record<"blue" | "orange" | "green" | "grey", Column>> = {
  dark: {
    blue: { ground: "#4a73ad", text: "#ffffff", ink: "#86aee6" },
    orange: { ground: "#f28033", text: "#1a0f05", ink: "#f59a5c" },
    green: { ground: "#3f7d54", text: "#ffffff", ink: "#74c48f" },
    grey: { ground: "#4a5566", text: "#ffffff", ink: "#a9b6c6" },
  },
  light: {
    blue: { ground: "#4a73ad", text: "#ffffff", ink: "#3a619a" },
    orange: { ground: "#f28033", text: "#1a0f05", ink: "#a84c08" },
    green: { ground: "#3f7d54", text: "#ffffff", ink: "#2f6e45" },
    grey: { ground: "#5b6675", text: "#ffffff", ink: "#4b5768" },
  },
};

/** The colour of the n-th run; they repeat after eight. */
export function runColour(index: number, theme: Theme): string {
  const { runs } = palettes[theme];
  return runs[((index % runs.length) + runs.length) % runs.length]!;
}

/** The colour with an opacity from 0 to 1. */
export function faded(colour: string, opacity: number): string {
  const [red, green, blue] = channels(colour);
  return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
}

/** Contrast of two colours as WCAG counts it: 1 to 21. */
export function contrast(one: string, other: string): number {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

const RAMP_STEPS = 256;
const rampCache = new Map<Theme, Uint8ClampedArray>();

/**
 * Colours of heat maps, lowest first: 256 times red, green, blue. One hue, lightness in even steps, from next to the
 * panel's ground away from it.
 */
export function ramp(theme: Theme): Uint8ClampedArray {
  let colours = rampCache.get(theme);
  if (!colours) {
    colours = new Uint8ClampedArray(3 * RAMP_STEPS);
    const [from, to] = theme === "light" ? [0.95, 0.3] : [0.27, 0.95];
    for (let index = 0; index < RAMP_STEPS; index++) {
      const lightness = from + ((to - from) * index) / (RAMP_STEPS - 1);
      // Chroma falls off at both ends, where the screen cannot show it; the hue leans to cyan where it is light.
      const chroma = 0.135 * Math.sin(Math.PI * Math.min(1, Math.max(0, (lightness - 0.08) / 0.92)));
      colours.set(oklch(lightness, chroma, 268 - 45 * (lightness - 0.3)), 3 * index);
    }
    rampCache.set(theme, colours);
  }
  return colours;
}

/** The colour at a share (0 to 1) of the ramp. */
export function rampColour(share: number, theme: Theme): string {
  const at = 3 * Math.round(Math.min(1, Math.max(0, share)) * (RAMP_STEPS - 1));
  const colours = ramp(theme);
  return `rgb(${colours[at]}, ${colours[at + 1]}, ${colours[at + 2]})`;
}

/** Red, green and blue (0 to 255) of "#rrggbb" or "rgb(r, g, b)". */
export function channels(colour: string): [number, number, number] {
  if (colour.startsWith("#")) {
    const number = parseInt(colour.slice(1), 16);
    return [(number >> 16) & 255, (number >> 8) & 255, number & 255];
  }
  const found = colour.match(/[\d.]+/g)!.map(Number);
  return [found[0]!, found[1]!, found[2]!];
}

function luminance(colour: string): number {
  const [red, green, blue] = channels(colour).map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** OKLCH (lightness 0 to 1, chroma, hue in degrees) as red, green, blue. */
function oklch(lightness: number, chroma: number, hue: number): [number, number, number] {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
    -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
    -0.0041960863 * long - 0.7034186147 * medium + 1.707614701 * short,
  ];
  return linear.map((value) => {
    const share = value <= 0.0031308 ? 12.92 * value : 1.055 * Math.max(0, value) ** (1 / 2.4) - 0.055;
    return Math.round(255 * Math.min(1, Math.max(0, share)));
  }) as [number, number, number];
}
