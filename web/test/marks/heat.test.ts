import { describe, expect, it } from "vitest";

import type { Heat } from "../../src/lib/chart";
import { ramp } from "../../src/lib/palette";
import { cellAt, cellsOf, heatColour, heatPixels, heatRange } from "../../src/marks/heat";
import { noise, range } from "./samples";

const map: Heat = {
  kind: "heat",
  label: "count",
  x: [0, 1, 2],
  y: [0, 1, 2],
  scale: "log",
  values: [
    [1, 10],
    [0, null],
  ],
};
const both = new Int32Array([0, 1, 1, 2]);

describe("cells", () => {
  it("are found by their edges", () => {
    const edges = [0, 1, 4, 5];
    expect([-0.1, 0, 0.9, 1, 4.5, 5, 9].map((value) => cellAt(edges, value))).toEqual([-1, 0, 0, 1, 2, 3, 3]);
  });

  it("agree with a plain search", () => {
    const random = noise(11);
    const edges = range(50)
      .map(() => random())
      .sort((a, b) => a - b);
    for (let count = 0; count < 200; count++) {
      const value = random();
      expect(cellAt(edges, value)).toBe(edges.filter((edge) => edge <= value).length - 1);
    }
  });

  it("fill their pixels, all of them and no others", () => {
    const found = cellsOf([1, 2, 4], 10, (pixel) => pixel / 2);
    expect([...found]).toEqual([0, 0, 0, 0, 0, 1, 0, 1, 1, 2, 1, 2, 1, 2, 1, 2, 0, 0, 0, 0]);
  });

  it("share a pixel where there are more cells than pixels: none is lost", () => {
    const found = cellsOf(range(101), 10, (pixel) => pixel * 10);
    const covered = new Set<number>();
    for (let pixel = 0; pixel < 10; pixel++)
      for (let cell = found[2 * pixel]!; cell < found[2 * pixel + 1]!; cell++) covered.add(cell);
    expect(covered.size).toBe(100);
  });
});

describe("colours", () => {
  it("run from the smallest to the largest value that has one", () => {
    expect(heatRange(map)).toEqual([1, 10]);
    expect(heatRange({ ...map, scale: "linear" })).toEqual([0, 10]);
    expect(heatRange({ ...map, values: [[null, null]] })).toBeNull();
  });

  it("leave out gaps and, on a log scale, zero", () => {
    const pixels = heatPixels(map, both, both, "light");
    expect([3, 7, 11, 15].map((at) => pixels[at])).toEqual([255, 255, 0, 0]);
    const colours = ramp("light");
    expect([...pixels.slice(0, 3)]).toEqual([...colours.slice(0, 3)]);
    expect([...pixels.slice(4, 7)]).toEqual([...colours.slice(-3)]);
  });

  it("show the largest of the cells that share a pixel", () => {
    const pixels = heatPixels(map, new Int32Array([0, 2]), new Int32Array([0, 1]), "dark");
    expect([...pixels.slice(0, 3)]).toEqual([...ramp("dark").slice(-3)]);
  });

  it("are there even if all values are equal, and one by one", () => {
    const flat: Heat = {
      ...map,
      values: [
        [3, 3],
        [3, 3],
      ],
      scale: "linear",
    };
    expect([...heatPixels(flat, both, both, "dark")].filter((_, index) => index % 4 === 3)).toEqual([
      255, 255, 255, 255,
    ]);
    expect(heatColour(flat, 3, "dark")).toMatch(/^rgb/);
    expect(heatColour(map, 0, "dark")).toBe("");
    expect(heatColour(map, null, "dark")).toBe("");
  });
});
