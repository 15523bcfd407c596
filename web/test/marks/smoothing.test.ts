import { expect, it } from "vitest";

import { smoothed } from "../../src/lib/smoothing";
import { noise, range } from "./samples";

/** As TensorBoard writes it. */
function reference(values: number[], weight: number): number[] {
  let last = 0;
  return values.map((value, index) => {
    last = last * weight + (1 - weight) * value;
    return last / (1 - weight ** (index + 1));
  });
}

it("is the average without bias", () => {
  const random = noise();
  const values = range(200).map(() => random());
  for (const weight of [0.1, 0.6, 0.99]) {
    const found = smoothed(range(200), values, weight);
    reference(values, weight).forEach((value, index) => expect(found[index]).toBeCloseTo(value, 9));
  }
});

it("changes nothing with weight 0, and keeps constants and bounds", () => {
  const random = noise();
  const values = range(100).map(() => random() - 0.5);
  expect(smoothed(range(100), values, 0)).toEqual(values);
  smoothed(
    range(50),
    range(50).map(() => 3),
    0.9,
  ).forEach((value) => expect(value).toBeCloseTo(3, 12));
  for (const value of smoothed(range(100), values, 0.9)) {
    expect(value).toBeGreaterThanOrEqual(Math.min(...values));
    expect(value).toBeLessThanOrEqual(Math.max(...values));
  }
});

it("keeps gaps and goes on behind them", () => {
  const found = smoothed([0, 1, 2, 3], [1, null, null, 1], 0.5);
  expect(found).toEqual([1, null, null, 1]);
});

it("forgets more over a longer distance, and counts repeated steps", () => {
  const near = smoothed([0, 1, 2, 3], [0, 0, 0, 1], 0.9)[3]!;
  const far = smoothed([0, 1, 2, 30], [0, 0, 0, 1], 0.9)[3]!;
  expect(far).toBeGreaterThan(near);
  expect(smoothed([0, 1, 1, 2], [0, 0, 1, 1], 0.5)[2]).toBeGreaterThan(0);
});
