/** Moving about on the page: moments, layers, zoom, scales, keys, theme, links. */

import { readFile } from "node:fs/promises";
import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, expect, inject, test } from "vitest";
import { close, launch, open, picture, serve, settled, shown, type Server } from "./harness";

let browser: Browser;
let server: Server;
let page: Page;

beforeAll(async () => {
  [browser, server] = await Promise.all([launch(), serve(inject("runs"))]);
});
afterAll(async () => {
  await browser?.close();
  await server?.stop();
});
beforeEach(async () => {
  page = await open(browser, server.url);
  await settled(page);
});
afterEach(() => close(page));

const slider = () => page.getByLabel("Step", { exact: true });
const panel = (name: string) => page.locator(`article[data-instrument=${name}]`);

/** Drag across the middle of a panel's first canvas. */
async function drag(name: string, from: number, to: number): Promise<void> {
  await panel(name).scrollIntoViewIfNeeded();
  const canvas = panel(name).locator("canvas").first();
  await canvas.waitFor();
  await settled(page);
  const box = (await canvas.boundingBox())!;
  const y = box.y + box.height * 0.4;
  await page.mouse.move(box.x + box.width * from, y);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * ((from + to) / 2), y, { steps: 4 });
  await page.mouse.move(box.x + box.width * to, y, { steps: 4 });
  await page.mouse.up();
}

test("every instrument of the first screen draws, without a request to elsewhere", async () => {
  const hosts = new Set<string>();
  page.on("request", (request) => hosts.add(new URL(request.url()).host));
  await page.reload();
  await settled(page);
  const articles = page.locator("article[data-instrument]");
  for (let index = 0; index < (await articles.count()); index++) await articles.nth(index).scrollIntoViewIfNeeded();
  await settled(page);
  const { charts } = await shown(page);
  const names = await articles.evaluateAll((found) => found.map((one) => (one as HTMLElement).dataset.instrument!));
  expect(names.length).toBeGreaterThanOrEqual(10);
  for (const name of names) expect(charts[name]?.missing || charts[name]?.plots.length, name).toBeTruthy();
  expect([...hosts]).toEqual([new URL(server.base).host]);
});

test("the slider moves the panels of a moment, and quick moves do not pile up", async () => {
  await panel("histogram1d_gauge").scrollIntoViewIfNeeded();
  await settled(page);
  const asked: string[] = [];
  page.on("request", (request) => request.url().includes("histogram1d_gauge") && asked.push(request.url()));
  await slider().evaluate((input: HTMLInputElement) => {
    for (const step of [...Array(40).keys(), 20]) {
      input.value = String(step);
      input.dispatchEvent(new Event("input", { bubbles: true }));
    }
  });
  await expect.poll(async () => (await shown(page)).charts.histogram1d_gauge?.step).toBe(20);
  expect(asked.at(-1)).toContain("step=20");
  expect(asked.length).toBeLessThan(5);
  const before = (await shown(page)).charts.histogram1d_gauge!.plots;
  await slider().fill("50");
  await expect.poll(async () => (await shown(page)).charts.histogram1d_gauge?.step).toBe(50);
  expect((await shown(page)).charts.histogram1d_gauge!.plots).not.toEqual(before);
  await picture(page, "moment");
});

test("keys: steps, live, replay, screens, search, help", async () => {
  const { lastStep } = await shown(page);
  const step = async () => (await shown(page)).step;
  await page.keyboard.press("ArrowLeft");
  const one = await step();
  expect(one).toBeLessThan(lastStep);
  await page.keyboard.press("Shift+ArrowLeft");
  expect(await step()).toBeLessThan(one - 1);
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("l");
  expect((await shown(page)).place.step).toBeNull();
  await slider().fill("5");
  await page.locator("main").focus();
  await page.keyboard.press("Space");
  await expect.poll(step).toBeGreaterThan(8);
  await page.keyboard.press("Space");
  const titles = await page.getByRole("navigation", { name: "Screens" }).getByRole("button").allInnerTexts();
  expect(titles.length).toBe(5);
  for (let key = 5; key >= 1; key--) {
    await page.keyboard.press(String(key));
    const current = page.locator("nav [aria-current=page]");
    await expect.poll(() => current.innerText()).toBe(titles[key - 1]);
  }
  await page.keyboard.press("?");
  await page.locator("dialog[open]").waitFor();
  await picture(page, "help");
  await page.keyboard.press("Escape");
  await page.locator("dialog[open]").waitFor({ state: "detached" });
  await page.keyboard.press("/");
  await expect.poll(() => page.evaluate(() => document.activeElement?.getAttribute("aria-label"))).toBe("Search runs");
});

test("choosing a layer narrows the panels that can be narrowed", async () => {
  await page.keyboard.press("3");
  await page.locator("#rail button.row", { hasText: "middle" }).first().click();
  await page.keyboard.press("1");
  await expect.poll(async () => (await shown(page)).charts.grad_norm_gauge?.scope).toMatch(/^middle/);
  await settled(page);
  await picture(page, "layer");
  const narrowed = (await shown(page)).charts.grad_norm_gauge!;
  await page.getByRole("button", { name: "Whole model" }).click();
  await expect.poll(async () => (await shown(page)).charts.grad_norm_gauge?.scope).toBe("");
  expect((await shown(page)).charts.grad_norm_gauge!.plots).not.toEqual(narrowed.plots);
});

test("dragging in one panel zooms all, and asks for what is between", async () => {
  const asked: string[] = [];
  page.on("request", (request) => request.url().includes("first=") && asked.push(request.url()));
  await drag("performance_gauge", 0.4, 0.7);
  await expect.poll(async () => (await shown(page)).place.zoom).not.toBeNull();
  const { zoom } = (await shown(page)).place;
  expect(zoom!.first).toBeGreaterThan(5);
  expect(zoom!.last).toBeLessThan(55);
  await panel("grad_norm_gauge").scrollIntoViewIfNeeded();
  await settled(page);
  expect(asked.some((url) => url.includes("grad_norm_gauge"))).toBe(true);
  expect(page.url()).toContain("zoom=");
  await picture(page, "zoom");
  await page.keyboard.press("Escape");
  expect((await shown(page)).place.zoom).toBeNull();
});

test("a link carries the place, the theme is remembered", async () => {
  await page.keyboard.press("3");
  await slider().fill("30");
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await ground();
  const theme = page.getByRole("button", { name: /^Theme/ });
  while ((await theme.getAttribute("aria-label")) !== "Theme: light") await theme.click();
  await expect.poll(ground).not.toBe(dark);
  const light = await ground();
  await page.reload();
  await settled(page);
  const { place } = await shown(page);
  expect([place.tab, place.step]).toEqual(["layers", 30]);
  expect(await ground()).toBe(light);
});

test("scales and smoothing reach the charts; an expanded panel explains itself; data can be saved", async () => {
  await page.getByLabel("Scale of the step axes").selectOption("log");
  expect((await shown(page)).place.xscale).toBe("log");
  await page.getByLabel("Scale of the step axes").selectOption("");
  const grad = panel("grad_norm_gauge");
  await grad.hover();
  await grad.getByLabel("Scale of the vertical axis").selectOption("log");
  expect((await shown(page)).place.yscales).toEqual({ grad_norm_gauge: "log" });
  const saved = page.waitForEvent("download");
  await grad.getByRole("button", { name: "Save the data" }).click();
  const csv = await readFile(await (await saved).path(), "utf8");
  expect(csv.trim().split("\n").length).toBeGreaterThan(50);
  const drawn = page.waitForEvent("download");
  await grad.getByRole("button", { name: "Save as picture" }).click();
  expect((await readFile(await (await drawn).path())).subarray(1, 4).toString()).toBe("PNG");
  await grad.getByRole("button", { name: "Fill the screen" }).click();
  await page.locator("dialog[open]").getByText("How to read it").waitFor();
  await settled(page);
  await picture(page, "expanded");
  await page.keyboard.press("Escape");
  await page.locator("dialog[open]").waitFor({ state: "detached" });
});
