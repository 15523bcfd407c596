import { describe, expect, it } from "vitest";

import {
  channels,
  columns,
  contrast,
  faded,
  palettes,
  ramp,
  rampColour,
  runColour,
} from "../../src/lib/palette";

const THEMES = ["dark", "light"] as const;

/** How colours look without one kind of cone (Machado, Oliveira, Fernandes 2009), and with all. */
const EYES = {
  all: [1, 0, 0, 0, 1, 0, 0, 0, 1],
  protan: [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
  deutan: [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881],
  tritan: [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.3039],
};

function multiplied(matrix: number[], [a, b, c]: number[]): number[] {
  return [0, 3, 6].map((row) => matrix[row]! * a! + matrix[row + 1]! * b! + matrix[row + 2]! * c!);
}

/** Lightness and two opponent colours (OKLab) as these eyes see it. */
function seen(colour: string, eye: number[]): number[] {
  const linear = channels(colour).map((value) =>
    value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4,
  );
  const there = multiplied(eye, linear).map((value) => Math.min(1, Math.max(0, value)));
  const cones = multiplied(
    [
      0.4122214708, 0.5363325363, 0.0514459929, 0.2119034982, 0.6806995451, 0.1073969566, 0.0883024619,
      0.2817188376, 0.6299787005,
    ],
    there,
  ).map(Math.cbrt);
  return multiplied(
    [
      0.2104542553, 0.793617785, -0.0040720468, 1.9779984951, -2.428592205, 0.4505937099, 0.0259040371,
      0.7827717662, -0.808675766,
    ],
    cones,
  );
}

function apart(colours: readonly string[]): number {
  let least = Infinity;
  for (const eye of Object.values(EYES)) {
    const points = colours.map((colour) => seen(colour, eye));
    points.forEach((one, index) =>
      points.slice(index + 1).forEach((other) => {
        least = Math.min(least, Math.hypot(...one.map((value, part) => value - other[part]!)));
      }),
    );
  }
  return least;
}

describe.each(THEMES)("the %s theme", (theme) => {
  const { panel, text, tones, runs } = palettes[theme];

  it("has eight colours for runs that all eyes tell apart", () => {
    expect(runs).toHaveLength(8);
    expect(apart(runs)).toBeGreaterThan(0.09);
  });

  it("has tones of series that all eyes tell apart", () => {
    expect(apart([tones.first, tones.second, tones.third, tones.fourth, tones.bad])).toBeGreaterThan(0.09);
  });

  it("has lines and texts that stand out from the panel", () => {
    for (const colour of [...runs, ...Object.values(tones)])
      expect(contrast(colour, panel)).toBeGreaterThan(3);
    expect(contrast(text, panel)).toBeGreaterThan(4.5);
    for (const { ground, text, ink } of Object.values(columns[theme])) {
      expect(contrast(ground, text)).toBeGreaterThan(4.5);
      expect(contrast(ink, panel)).toBeGreaterThan(4.5);
    }
  });

  it("has a ramp whose lightness changes evenly, away from the panel", () => {
    const colours = ramp(theme);
    const lightness = Array.from({ length: 256 }, (_, index) => {
      return seen(
        `rgb(${colours[3 * index]}, ${colours[3 * index + 1]}, ${colours[3 * index + 2]})`,
        EYES.all,
      )[0]!;
    });
    const whole = lightness[255]! - lightness[0]!;
    expect(Math.abs(whole)).toBeGreaterThan(0.6);
    for (let index = 8; index < 256; index += 8) {
      expect((lightness[index]! - lightness[index - 8]!) / whole).toBeCloseTo(8 / 255, 2);
    }
    expect(contrast(rampColour(1, theme), panel)).toBeGreaterThan(contrast(rampColour(0, theme), panel));
    expect(contrast(rampColour(0, theme), panel)).toBeGreaterThan(1.05);
  });
});

it("runs begin again after eight", () => {
  expect(runColour(9, "dark")).toBe(runColour(1, "dark"));
  expect(new Set(Array.from({ length: 8 }, (_, index) => runColour(index, "light"))).size).toBe(8);
});

it("colours can be faded, whichever way they are written", () => {
  expect(faded("#102030", 0.5)).toBe("rgba(16, 32, 48, 0.5)");
  expect(faded("rgb(1, 2, 3)", 1)).toBe("rgba(1, 2, 3, 1)");
});
