import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { toCsv, toPng } from "../../src/marks/export";
import { calls, stubCanvas } from "./canvas";
import { bars, chart, line, plot, samples } from "./samples";

describe("a table", () => {
  const rows = (...marks: Parameters<typeof plot>[0]) =>
    toCsv(chart("test", [plot(marks)]))
      .trimEnd()
      .split("\r\n");

  it("has a row for every number", () => {
    expect(rows(line("loss", [0, 1], [0.5, null]))).toEqual([
      "plot,kind,label,x,x_end,y,y_end,value,text",
      "1 main,line,loss,0,,0.5,,,",
      "1 main,line,loss,1,,,,,",
    ]);
    expect(rows(bars("count", [0, 1, 2], [3, 4]))[2]).toBe("1 main,bars,count,1,2,,,4,");
    expect(rows(bars("count", [0, 1], [3], { flat: true }))[1]).toBe("1 main,bars,count,,,0,1,3,");
    expect(
      rows({ kind: "heat", label: "norm", x: [0, 1, 2], y: [5, 6], values: [[7, 8]], scale: "log" }),
    ).toHaveLength(3);
    expect(rows({ kind: "zone", axis: "y", low: 1, high: 2, label: "", tone: "faint" })[1]).toBe(
      "1 main,zone,,,,1,2,,",
    );
    expect(rows({ kind: "guide", axis: "x", at: 4, label: "two, three", tone: "bad" })[1]).toBe(
      '1 main,guide,"two, three",4,,,,,',
    );
    expect(rows({ kind: "disc", radius: 2, label: "norm", tone: "bad" })[1]).toBe("1 main,disc,norm,,,,,2,");
    expect(rows({ kind: "ticks", label: "events", at: [9], texts: ['a "b"'], tone: "bad" })[1]).toBe(
      '1 main,ticks,events,9,,,,,"a ""b"""',
    );
  });

  it("holds every sample", () => {
    for (const sample of samples) expect(toCsv(sample).split("\r\n").length).toBeGreaterThan(2);
  });

  it("has nothing a spreadsheet would run", () => {
    expect(rows(line("=1+1", [0], [-1]))[1]).toBe("1 main,line,'=1+1,0,,-1,,,");
  });
});

describe("a picture", () => {
  beforeEach(stubCanvas);
  afterEach(() => {
    vi.restoreAllMocks();
    vi.unstubAllGlobals();
    document.body.replaceChildren();
  });

  it("shows canvases and texts of plots, and nothing else", async () => {
    const blob = new Blob(["picture"], { type: "image/png" });
    vi.spyOn(HTMLCanvasElement.prototype, "toBlob").mockImplementation((done) => done(blob));
    document.body.innerHTML =
      "<figure><figcaption>hidden</figcaption><div data-plot>loss<canvas></canvas></div></figure>";
    expect(await toPng(document.querySelector("figure")!)).toBe(blob);
    expect(calls.drawImage).toBe(1);
    expect(calls.fillText).toBe(1);
  });

  it("that cannot be made is an error", async () => {
    vi.spyOn(HTMLCanvasElement.prototype, "toBlob").mockImplementation((done) => done(null));
    await expect(toPng(document.body)).rejects.toThrow("could not be made");
  });
});
