/** A training is written while the page is open: it moves, and survives whatever happens to the others. */

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { close, emptyFolder, ended, freePort, launch, open, picture, python, serve, settled, train } from "./harness";

const TOKEN = "the-same-after-a-restart-0123456789";

let browser: Browser;
beforeAll(async () => {
  browser = await launch();
});
afterAll(() => browser?.close());

const shownStep = (page: Page): Promise<number> =>
  page.evaluate(() => Number(document.querySelector("header .step dd")?.textContent?.replace(/\D/g, "") || NaN));

async function reaches(page: Page, step: number): Promise<void> {
  await expect.poll(() => shownStep(page), { timeout: 60_000, interval: 100 }).toBeGreaterThanOrEqual(step);
}

/** From now on, note when the page shows which step. */
async function noteSteps(page: Page): Promise<void> {
  await page.evaluate(() => {
    const noted: [number, number][] = [];
    (window as unknown as { noted: [number, number][] }).noted = noted;
    const look = () => {
      const step = Number(document.querySelector("header .step dd")?.textContent?.replace(/\D/g, "") || NaN);
      if (step >= 0 && noted.at(-1)?.[0] !== step) noted.push([step, Date.now() / 1000]);
      requestAnimationFrame(look);
    };
    look();
  });
}

test("a run that begins while the page is open appears and moves by itself", async () => {
  const folder = await emptyFolder();
  const server = await serve(folder);
  const page = await open(browser, server.url);
  await page.getByText("No runs here yet").waitFor();
  await noteSteps(page);
  const times = join(folder, "times.txt");
  await ended(train(join(folder, "live"), "--steps", "120", "--pause", "0.05", "--times", times));
  await reaches(page, 119);
  await page.locator("header").getByText("finished").waitFor({ timeout: 10_000 });

  const written = new Map(
    (await readFile(times, "ascii"))
      .trim()
      .split("\n")
      .map((line) => line.split(" ").map(Number) as [number, number]),
  );
  const noted = await page.evaluate(() => (window as unknown as { noted: [number, number][] }).noted);
  const late = noted.map(([step, at]) => at - (written.get(step) ?? NaN)).filter((value) => value >= 0);
  late.sort((a, b) => a - b);
  const median = late[late.length >> 1]!;
  console.log(
    `live: ${noted.length} updates in ${(noted.at(-1)![1] - noted[0]![1]).toFixed(1)} s; ` +
      `step to screen: median ${(1000 * median).toFixed(0)} ms, worst ${(1000 * late.at(-1)!).toFixed(0)} ms`,
  );
  expect(noted.length).toBeGreaterThanOrEqual(6);
  expect(median).toBeLessThan(3);
  await picture(page, "live");
  await close(page);
  await server.stop();
});

test("a training that is killed leaves the page as it was", async () => {
  const folder = await emptyFolder();
  const server = await serve(folder);
  const training = train(join(folder, "killed"), "--steps", "100000", "--pause", "0.02");
  const page = await open(browser, server.url);
  await reaches(page, 20);
  training.kill("SIGKILL");
  const last = await shownStep(page);
  await page.waitForTimeout(1500);
  expect(await shownStep(page)).toBeGreaterThanOrEqual(last);
  for (const key of ["2", "3", "4", "1"]) await page.keyboard.press(key);
  await expect.poll(() => page.locator("canvas").count(), { timeout: 10_000 }).toBeGreaterThan(3);
  await page.reload();
  await reaches(page, last);
  await close(page);
  await server.stop();
});

test("when the server goes and comes back, the page says so and carries on", async () => {
  const folder = await emptyFolder();
  const port = await freePort();
  let server = await serve(folder, port, TOKEN);
  await ended(python("-m", "cockpit.testing.runs", join(folder, "before"), "--steps", "20"));
  const page = await open(browser, server.url);
  await reaches(page, 19);
  await settled(page);
  await server.stop();
  await page.getByText(/does not answer|trying again/i).first().waitFor({ timeout: 15_000 });
  await picture(page, "server-gone");
  await ended(python("-m", "cockpit.testing.runs", join(folder, "after"), "--steps", "25"));
  server = await serve(folder, port, TOKEN);
  await page.locator("#rail").getByText("after").first().waitFor({ timeout: 20_000 });
  await expect.poll(() => page.getByText(/does not answer|trying again/i).count(), { timeout: 10_000 }).toBe(0);
  await close(page, /ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET/);
  await server.stop();
});

test("of seven tabs the last one asks instead of listening, and moves too", async () => {
  const folder = await emptyFolder();
  const server = await serve(folder);
  const training = train(join(folder, "tabs"), "--steps", "100000", "--pause", "0.05");
  const first = await open(browser, server.url);
  await reaches(first, 1);
  const tabs = [first];
  let asked = 0;
  while (tabs.length < 7) {
    const tab = await first.context().newPage();
    if (tabs.length === 6) tab.on("request", (request) => request.url().includes("api/sequences") && asked++);
    await tab.goto(server.base, { waitUntil: "commit" });
    tabs.push(tab);
  }
  const last = tabs[6]!;
  await expect.poll(() => shownStep(last), { timeout: 60_000 }).toBeGreaterThan(0);
  const then = await shownStep(last);
  await reaches(last, then + 10);
  expect(asked).toBeGreaterThan(0);
  training.kill("SIGKILL");
  await close(first);
  await server.stop();
});
