import { describe, expect, it } from "vitest";
import { foundReport, staticApi, type Report } from "../../src/lib/staticApi";
import { chart, run } from "../fixtures";

const report: Report = {
  runs: [run("a")],
  charts: {
    a: {
      alpha: { steps: [0, 10, 20], charts: [0, 10, 20].map((step) => chart("alpha", { step })) },
      loss: { steps: [null], charts: [chart("loss")] },
    },
  },
  scoped: { a: { "0.weight": { norms: chart("norms", { scope: "0.weight" }) } } },
};

describe("a report", () => {
  const api = staticApi(report);

  it.each([
    [null, 20],
    [0, 0],
    [9, 0],
    [10, 10],
    [999, 20],
  ])("answers for step %s with the last moment before: %s", async (step, found) => {
    expect((await api.chart("a", "alpha", { step })).step).toBe(found);
  });

  it("answers any step with the one chart of a series", async () => {
    expect((await api.chart("a", "loss", { step: 3 })).name).toBe("loss");
  });

  it("answers for a layer, and says what it does not hold", async () => {
    expect((await api.chart("a", "norms", { scope: "0.weight" })).scope).toBe("0.weight");
    const lacking = await api.chart("a", "norms", { scope: "3.weight" });
    expect(lacking.missing).toContain("of 3.weight");
    expect(lacking.title).toBe("Title of norms");
    expect((await api.chart("a", "norms", {})).missing).toContain("does not hold");
    expect(await api.layers("a", null)).toEqual([]);
  });

  it("is found in the document, where there is one", () => {
    expect(foundReport(document)).toBeNull();
    const script = document.createElement("script");
    script.type = "application/json";
    script.id = "cockpit-report";
    script.textContent = JSON.stringify(report);
    document.body.append(script);
    expect(foundReport(document)?.runs[0]?.id).toBe("a");
    script.remove();
  });
});
