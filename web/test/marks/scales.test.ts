import { describe, expect, it } from "vitest";

import type { Scale } from "../../src/lib/chart";
import { formatTick, formatValue, span, ticks, transform } from "../../src/lib/scales";
import { noise } from "./samples";

const SCALES: Scale[] = ["linear", "log", "symlog"];

/** Ranges from 1e-12 to 1e12, wide and narrow, around zero and far from it. */
function* ranges(scale: Scale): Generator<[number, number]> {
  const random = noise(3);
  for (let count = 0; count < 120; count++) {
    const size = 10 ** (24 * random() - 12);
    const low = scale === "log" ? size : size * (random() - 0.5);
    yield [low, low + Math.abs(low || 1) * 10 ** (6 * random() - 3)];
  }
}

describe("transforms", () => {
  it.each(SCALES)("%s goes there and back, in order", (scale) => {
    const map = transform(scale, 0.1);
    for (const [low, high] of ranges(scale)) {
      expect(map.backward(map.forward(high)) / high).toBeCloseTo(1, 9);
      expect(map.forward(high)).toBeGreaterThan(map.forward(low));
    }
  });

  it("have no place for what a logarithm does not take", () => {
    expect(transform("log").forward(0)).toBeNaN();
    expect(transform("log").forward(-1)).toBeNaN();
    expect(transform("symlog", 0).forward(0)).toBe(0);
  });

  it("symlog is odd, and linear near zero", () => {
    const { forward } = transform("symlog", 10);
    expect(forward(-7)).toBe(-forward(7));
    expect(forward(0.2) / forward(0.1)).toBeCloseTo(2, 3);
  });
});

describe("ticks", () => {
  it.each(SCALES)("of a %s axis lie inside, ascend, have different labels, and are not too many", (scale) => {
    for (const [low, high] of ranges(scale)) {
      for (const count of [2, 5, 9]) {
        const found = ticks(transform(scale, 1), low, high, count);
        const slack = (high - low) * 1e-6;
        expect(found.length, `${scale} ${low} ${high} ${count}`).toBeGreaterThanOrEqual(2);
        expect(found.length).toBeLessThanOrEqual(2 * count + 2);
        expect(new Set(found.map(({ label }) => label)).size).toBe(found.length);
        found.forEach(({ at }, index) => {
          expect(at).toBeGreaterThanOrEqual(low - slack);
          expect(at).toBeLessThanOrEqual(high + slack);
          if (index) expect(at).toBeGreaterThan(found[index - 1]!.at);
        });
      }
    }
  });

  const labels = (scale: Scale, low: number, high: number, count: number) =>
    ticks(transform(scale), low, high, count).map(({ label }) => label);

  it("are round", () => {
    expect(labels("linear", 0, 1, 5)).toEqual(["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
    expect(labels("linear", 1e-7, 5e-7, 4)).toEqual(["1e−7", "2e−7", "3e−7", "4e−7", "5e−7"]);
    expect(labels("linear", 0, 40000, 4)).toEqual(["0", "10k", "20k", "30k", "40k"]);
    expect(labels("log", 1e-8, 1e4, 6)).toEqual(["1e−8", "1e−6", "1e−4", "0.01", "1", "100", "10k"]);
    expect(labels("symlog", -1000, 1000, 5)).toEqual(["−1k", "−100", "−10", "0", "10", "100", "1k"]);
  });

  it("of steps are whole", () => {
    const found = ticks(transform("linear"), 0, 3, 8, true);
    expect(found.map(({ at }) => at)).toEqual([0, 1, 2, 3]);
  });

  it("of an empty range are none", () => expect(ticks(transform("linear"), 1, 1, 5)).toEqual([]));
});

describe("numbers", () => {
  it("beside ticks have as many digits as their distance needs", () => {
    expect(formatTick(0.30000000000000004, 0.1)).toBe("0.3");
    expect(formatTick(-2500000, 500000)).toBe("−2.5M");
    expect(formatTick(1.5e-9, 5e-10)).toBe("1.5e−9");
  });

  it.each([
    [0, "0"],
    [12, "12"],
    [-3, "−3"],
    [123456, "123\u202f456"],
    [0.123456, "0.1235"],
    [1.5, "1.5"],
    [12345.6, "12\u202f346"],
    [1e-7, "1e−7"],
    [1.25e9, "1.25e9"],
    [null, "not finite"],
  ])("to be read off: %s is %s", (value, text) => expect(formatValue(value)).toBe(text));

  it("keep four digits wherever they lie", () => {
    const random = noise(5);
    for (let count = 0; count < 500; count++) {
      const value = (random() - 0.5) * 10 ** (30 * random() - 15);
      const read = Number(formatValue(value).replaceAll("\u202f", "").replaceAll("−", "-"));
      expect(Math.abs(read - value)).toBeLessThanOrEqual(Math.abs(value) * 1e-3);
    }
  });
});

describe("the span of an axis", () => {
  const linear = transform("linear");

  it("holds all values with a margin, also a single one", () => {
    expect(span(linear, [[1, null, 3]], { margin: 0.5 })).toEqual([0, 4]);
    const [low, high] = span(linear, [[5, 5]])!;
    expect(low).toBeLessThan(5);
    expect(high).toBeGreaterThan(5);
    expect(span(linear, [[0]])![1]).toBeGreaterThan(0);
  });

  it("is unknown without values", () => {
    expect(span(linear, [[null]])).toBeNull();
    expect(span(transform("log"), [[-1, 0]])).toBeNull();
  });

  it("lets guides in that leave half of the axis to the values", () => {
    expect(span(linear, [[0, 1]], { guides: [1.9], margin: 0 })).toEqual([0, 1.9]);
    expect(span(linear, [[0, 1]], { guides: [50, -50], margin: 0 })).toEqual([0, 1]);
  });

  it("begins at zero for heights, and below the smallest on a log scale", () => {
    expect(span(linear, [[2, 4]], { zero: true })![0]).toBe(0);
    expect(span(transform("log"), [[1, 100]], { zero: true })![0]).toBeLessThan(0);
  });
});
