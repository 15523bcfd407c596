/** The page for everyone: no serious finding of axe on any screen, in both themes, at three sizes. */

import { AxeBuilder } from "@axe-core/playwright";
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { SIZES, close, launch, open, picture, serve, settled, type Server } from "./harness";

let browser: Browser;
let server: Server;

beforeAll(async () => {
  [browser, server] = await Promise.all([launch(), serve(inject("runs"))]);
});
afterAll(async () => {
  await browser?.close();
  await server?.stop();
});

const cases = Object.entries(SIZES).flatMap(([name, viewport]) =>
  (["dark", "light"] as const).map((colorScheme) => ({ name, viewport, colorScheme })),
);

const SCREENS = ["cockpit", "auxiliary", "layers", "findings", "compare"];

test.each(cases)("$name, $colorScheme", async ({ name, viewport, colorScheme }) => {
  const page = await open(browser, server.url, { viewport, colorScheme, hasTouch: name === "phone" });
  await settled(page);
  for (const [key, screen] of SCREENS.entries()) {
    if (name !== "desk" && screen !== "cockpit" && screen !== "layers") continue; // the others are made of the same parts
    await page.keyboard.press(String(key + 1));
    await page.waitForTimeout(300);
    if (screen !== "findings" && screen !== "compare") await settled(page);
    await picture(page, `${screen}-${name}-${colorScheme}`);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    expect(wide, "the page is no wider than the window").toBeLessThanOrEqual(0);
    const { violations } = await new AxeBuilder({ page }).analyze();
    const serious = violations
      .filter(({ impact }) => impact === "serious" || impact === "critical")
      .map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
    expect(serious, screen).toEqual([]);
  }
  await close(page);
});
