/** Without a server: a report opened from a file with the network cut, and the fragment a notebook shows. */

import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { close, emptyFolder, ended, launch, open, picture, python, settled, shown } from "./harness";

let browser: Browser;
let folder: string;

beforeAll(async () => {
  [browser, folder] = await Promise.all([launch(), emptyFolder()]);
});
afterAll(() => browser?.close());

test("an exported page works from a file, offline", async () => {
  const file = join(folder, "report.html");
  const runs = ["small", "large"].map((name) => join(inject("runs"), name));
  await ended(python("-m", "cockpit", "export", ...runs, "--format", "html", "-o", file));
  const page = await open(browser, "about:blank", { offline: true });
  const requests: string[] = [];
  page.on("request", (request) => /^https?:/.test(request.url()) && requests.push(request.url()));
  await page.goto(pathToFileURL(file).href);
  await settled(page);
  expect(Object.keys((await shown(page)).charts).length).toBeGreaterThan(3);
  await page.getByLabel("Step", { exact: true }).fill("20");
  await page.locator("article[data-instrument=histogram1d_gauge]").scrollIntoViewIfNeeded();
  await expect.poll(async () => (await shown(page)).charts.histogram1d_gauge?.step).toBeLessThanOrEqual(20);
  for (const key of ["2", "3", "4", "5"]) await page.keyboard.press(key);
  await picture(page, "report");
  expect(requests).toEqual([]);
  await close(page);
});

test("what a notebook displays is alive without a server", async () => {
  const code = "import sys; from cockpit import Run; sys.stdout.write(Run(sys.argv[1])._repr_html_())";
  const fragment = await ended(python("-c", code, join(inject("runs"), "small")));
  const file = join(folder, "notebook.html");
  await writeFile(file, `<!doctype html><meta charset="utf-8"><title>notebook</title><body>${fragment}</body>`);
  const page = await open(browser, "about:blank", { offline: true });
  await page.goto(pathToFileURL(file).href);
  const inside = page.frameLocator("iframe").first();
  await inside.locator("article[data-instrument] canvas").first().waitFor();
  expect(await inside.locator("#rail").count()).toBe(0);
  await page.waitForTimeout(500);
  await picture(page, "notebook");
  await close(page);
});
