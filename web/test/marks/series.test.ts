import { describe, expect, it } from "vitest";

import { palettes } from "../../src/lib/palette";
import { arrange, headingOf, headingRows, shares } from "../../src/marks/layout";
import { drawn, legend } from "../../src/marks/series";
import { axis, chart, line, plot, samples, steps } from "./samples";

const two = plot(
  [
    line("loss", [0], [1]),
    line("accuracy", [0], [1], { tone: "second" }),
    line("bound", [0], [1], { tone: "neutral" }),
  ],
  { x: steps },
);
const other = { label: "run b", colour: "#123456", plot: two };

describe("colours and dashes", () => {
  it("tell quantities apart in one run", () => {
    const found = drawn(two, [], "dark");
    expect(found.map(({ colour }) => colour)).toEqual(
      ["first", "second", "neutral"].map((tone) => palettes.dark.tones[tone as "first"]),
    );
    expect(found.every(({ dash }) => dash.length === 0)).toBe(true);
  });

  it("tell runs and quantities apart in several", () => {
    const found = drawn(two, [other], "light", { label: "run a", colour: "#abcdef" });
    expect(found.map(({ run }) => run)).toEqual(["run b", "run b", "run b", "run a", "run a", "run a"]);
    expect(found.map(({ colour }) => colour)).toEqual([
      "#123456",
      "#123456",
      palettes.light.tones.neutral,
      "#abcdef",
      "#abcdef",
      palettes.light.tones.neutral,
    ]);
    expect(found[0]!.dash).toEqual(found[3]!.dash);
    expect(found[0]!.dash).not.toEqual(found[1]!.dash);
    const { runs, quantities } = legend(found, "light");
    expect(runs.map(({ label }) => label)).toEqual(["run a", "run b"]);
    expect(quantities.map(({ label }) => label)).toEqual(["loss", "accuracy", "bound"]);
  });

  it("name runs in the order in which they are given", () => {
    const found = drawn(two, [other, { ...other, label: "run c" }], "light", {
      label: "run a",
      colour: "#abcdef",
    });
    expect(legend(found, "light").runs.map(({ label }) => label)).toEqual(["run a", "run b", "run c"]);
  });

  it("dash what asks for it", () => {
    const one = plot([line("a", [0], [1], { dashed: true })]);
    expect(drawn(one, [], "dark")[0]!.dash).not.toEqual([]);
  });
});

describe("the heading", () => {
  const single = plot([line("loss", [0], [1])], { x: steps, y: axis({ label: "Loss" }) });
  const heading = (one: typeof single, wanted: "full" | "axes" | "none" = "full") =>
    headingOf(one, drawn(one, [], "dark"), "dark", wanted);

  it("does not repeat the axis of a single line", () => {
    expect(heading(single)).toMatchObject({ y: { label: "Loss", entry: null }, entries: [] });
    expect(heading({ ...single, y: axis() })!.entries).toHaveLength(1);
    expect(heading(two)!.entries).toHaveLength(3);
  });

  it("is only what is wanted, and null if that is nothing", () => {
    expect(heading(two, "axes")).toBeNull();
    expect(heading(single, "none")).toBeNull();
    expect(heading(single, "axes")!.y.label).toBe("Loss");
  });

  it("marks an axis with the colour of the only line it measures", () => {
    const pair = plot([line("loss", [0], [1]), line("accuracy", [0], [1], { right: true, tone: "second" })], {
      x: steps,
      y: axis({ label: "Loss" }),
      right: axis({ label: "Accuracy" }),
    });
    expect(heading(pair)).toMatchObject({
      y: { entry: { label: "loss" } },
      right: { entry: { label: "accuracy" } },
      entries: [],
    });
    const several = headingOf(
      pair,
      drawn(pair, [{ ...other, plot: pair }], "dark", { label: "a", colour: "#000000" }),
      "dark",
      "full",
    )!;
    expect(several.y.entry!.dash).not.toEqual(several.right.entry!.dash);
    expect(several.entries.map(({ label }) => label)).toEqual(["a", "run b"]);
  });

  it("takes a second row where one is too narrow", () => {
    const long = { ...two, y: axis({ label: "a long label of an axis" }) };
    const rows = (width: number) => headingRows(heading(long), width, (text) => 6 * text.length);
    expect([rows(150), rows(800)]).toEqual([2, 1]);
    expect(headingRows(null, 100, () => 1)).toBe(0);
  });
});

describe("the arrangement", () => {
  const of = (name: string) => arrange(samples.find((sample) => sample.name === name)!);

  it("puts bars along the edges of a map", () => {
    expect(of("map with margins")).toMatchObject({
      kind: "margins",
      main: [0],
      top: 1,
      side: 2,
      sideFirst: false,
    });
  });

  it("puts series beside a figure", () => {
    expect(of("figure with series")).toMatchObject({ kind: "beside", main: [0], series: [1, 2, 3] });
  });

  it("puts all others below each other", () => {
    const series = plot([line("a", [0], [1])], { x: steps });
    const found = arrange(chart("two", [{ ...series, place: "below" }, series]));
    expect(found).toMatchObject({ kind: "stack", main: [1, 0] });
    expect(of("log")).toMatchObject({ kind: "stack", main: [0] });
    expect(arrange(chart("none", []))).toMatchObject({ kind: "stack", main: [] });
  });

  it("shares out the height", () => {
    expect(shares([2, 1, 1], 215, 15)).toEqual([100, 50, 65]);
  });
});
