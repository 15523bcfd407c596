import { describe, expect, it } from "vitest";
import { brief, clock, duration, percent, setting, whole } from "../../src/lib/format";

describe("numbers as people read them", () => {
  it.each([
    [0, "0"],
    [0.031249, "0.0312"],
    [-0.5, "\u22120.5"],
    [12.44, "12.4"],
    [1250.4, "1,250"],
    [3.1e-7, "3.1e\u22127"],
    [-2.5e9, "\u22122.5e9"],
    [null, "–"],
    [NaN, "–"],
  ])("%s is %s", (value, text) => expect(brief(value)).toBe(text));

  it.each([
    [0, "0 %"],
    [0.0341, "3.4 %"],
    [0.5, "50 %"],
    [null, "–"],
  ])("the share %s is %s", (value, text) => expect(percent(value)).toBe(text));

  it.each([
    [42.9, "42 s"],
    [185, "3 m 05 s"],
    [7800, "2 h 10 m"],
    [4 * 86400 + 6 * 3600, "4 d 6 h"],
    [null, "–"],
    [NaN, "–"],
    [-1, "–"],
  ])("%s seconds are %s", (value, text) => expect(duration(value)).toBe(text));

  it("writes whole numbers, settings and times", () => {
    expect(whole(1234567)).toBe("1,234,567");
    expect(whole(null)).toBe("–");
    expect(setting([1, 2])).toBe("[1,2]");
    expect(setting(null)).toBe("–");
    expect(setting(true)).toBe("true");
    expect(clock(null)).toBe("");
    expect(clock(86400 * 15)).toMatch(/1[567] Jan/);
  });
});
