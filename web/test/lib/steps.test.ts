import { describe, expect, it } from "vitest";
import { after, before, union } from "../../src/lib/steps";

describe("walking over recorded steps", () => {
  const recorded = [0, 6, 12, 18];

  it("goes to the next one, from on it or between two", () => {
    expect(after(recorded, 6, 20)).toBe(12);
    expect(after(recorded, 7, 20)).toBe(12);
    expect(before(recorded, 12)).toBe(6);
    expect(before(recorded, 13)).toBe(12);
  });

  it("ends at the last step and stays at the first", () => {
    expect(after(recorded, 18, 20)).toBe(20);
    expect(after(recorded, 20, 20)).toBeNull();
    expect(before(recorded, 0)).toBe(0);
  });

  it("goes one by one while nothing is known", () => {
    expect(after([], 4, 20)).toBe(5);
    expect(after([], 20, 20)).toBeNull();
    expect(before([], 4)).toBe(3);
    expect(before([], 0)).toBe(0);
  });

  it("knows a step from any line, also when the longest list is an old one", () => {
    expect(union([[0, 2, 4, 6], [0, 3, null, 9]])).toEqual([0, 2, 3, 4, 6, 9]);
    expect(union([])).toEqual([]);
  });
});
