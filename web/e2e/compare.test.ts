/** Two runs together: above each other, side by side, and in what they differ. */

import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { close, launch, open, picture, serve, settled, type Server } from "./harness";

let browser: Browser;
let server: Server;

beforeAll(async () => {
  [browser, server] = await Promise.all([launch(), serve(inject("runs"))]);
});
afterAll(async () => {
  await browser?.close();
  await server?.stop();
});

async function both(): Promise<Page> {
  const page = await open(browser, server.url);
  await settled(page);
  const boxes = page.locator("#rail input[type=checkbox]");
  expect(await boxes.count()).toBe(2);
  for (const box of await boxes.all()) if (!(await box.isChecked())) await box.check();
  await expect.poll(() => page.evaluate(() => window.__cockpit.state.chosen.length)).toBe(2);
  await settled(page);
  return page;
}

test("overlay: one panel, the curves of both", async () => {
  const page = await both();
  await expect
    .poll(() =>
      page.evaluate(() => {
        const { charts, chosen } = window.__cockpit.state;
        return chosen.every((id) => (charts.get(`${id}/grad_norm_gauge`)?.plots.length ?? 0) > 0);
      }),
    )
    .toBe(true);
  expect(await page.locator("article[data-instrument=grad_norm_gauge]").count()).toBe(1);
  await picture(page, "overlay");
  await close(page);
});

test("side by side: a panel for each", async () => {
  const page = await both();
  await page.getByRole("button", { name: "side by side" }).click();
  await settled(page);
  await expect.poll(() => page.locator("article[data-instrument=grad_norm_gauge]").count()).toBe(2);
  expect(page.url()).toContain("layout=side");
  await picture(page, "side-by-side");
  await close(page);
});

test("the table shows the settings in which they differ, and only those", async () => {
  const page = await both();
  await page.keyboard.press("5");
  const table = page.getByRole("region", { name: "Different settings" });
  await table.waitFor();
  const lines = await table.locator("tbody tr").allInnerTexts();
  const rate = lines.find((line) => /lr|learning/i.test(line));
  expect(rate).toMatch(/0\.01/);
  expect(rate).toMatch(/0\.2/);
  expect(lines.some((line) => /momentum/i.test(line))).toBe(false);
  await settled(page);
  await picture(page, "compare");
  await close(page);
});
