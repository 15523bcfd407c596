import { describe, expect, it, vi } from "vitest";
import { START, put, read, written, type Place } from "../../src/lib/address";

describe("the address", () => {
  it("is empty at the start", () => {
    expect(written(START)).toBe("");
    expect(read("")).toEqual(START);
  });

  it("brings back everything it was given, also odd names", () => {
    const place: Place = {
      runs: ["a1", "b2"],
      tab: "layers",
      step: 0,
      zoom: { first: 2.5, last: 80 },
      scope: "net.0/a&b=c#%.weight",
      smoothing: 0.35,
      xscale: "symlog",
      yscales: { alpha_gauge: "log", loss: "linear" },
      layout: "side",
    };
    expect(read(written(place))).toEqual(place);
  });

  it.each(["#step=x&zoom=9~2&x=cubic&y=loss:cubic&smooth=no&layout=heap", "#step=-3&zoom=~4", "#%%%", "#zoom=1"])(
    "ignores what it does not understand: %s",
    (hash) => {
      const { runs, ...rest } = read(hash);
      expect({ runs, ...rest }).toEqual(START);
    },
  );

  it("keeps smoothing inside its range", () => {
    expect(read("#smooth=7").smoothing).toBe(0.99);
  });

  it("is put into the address bar, where there is one", () => {
    put("#step=3");
    expect(location.hash).toBe("#step=3");
    put("");
    expect(location.hash).toBe("");
    const refused = vi.spyOn(history, "replaceState").mockImplementation(() => {
      throw new DOMException("not here", "SecurityError");
    });
    expect(() => put("#step=4")).not.toThrow();
    expect(refused).toHaveBeenCalled();
    refused.mockRestore();
  });
});
