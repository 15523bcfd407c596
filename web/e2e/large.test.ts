/** A run of a million steps: how long it takes to open, and whether the page stays smooth. Only with LARGE=1. */

import { join } from "node:path";
import { expect, test } from "vitest";
import { close, emptyFolder, ended, launch, open, picture, python, serve, settled } from "./harness";

test.skipIf(!process.env.LARGE)(
  "a million steps open at once and scroll smoothly",
  { timeout: 400_000 },
  async () => {
    const folder = await emptyFolder();
    await ended(python("-m", "cockpit.testing.runs", join(folder, "million"), "--steps", "1000000", "--parameters", "100"));
    const [browser, server] = await Promise.all([launch(), serve(folder)]);
    const begun = performance.now();
    const page = await open(browser, server.url);
    await page.waitForFunction(() => document.querySelectorAll("article canvas").length >= 6, null, { timeout: 60_000 });
    const first = performance.now() - begun;
    await settled(page);
    const all = performance.now() - begun;

    // Steps of a replay: the time between two frames while the moment moves.
    const slider = page.locator("input[type=range][data-steps]");
    const frames = page.evaluate(
      () =>
        new Promise<number[]>((done) => {
          const gaps: number[] = [];
          let last = performance.now();
          const look = (now: number) => {
            gaps.push(now - last);
            last = now;
            if (gaps.length < 150) requestAnimationFrame(look);
            else done(gaps);
          };
          requestAnimationFrame(look);
        }),
    );
    for (let step = 100_000; step < 900_000; step += 100_000) await slider.fill(String(step));
    const gaps = (await frames).sort((a, b) => a - b);
    console.log(
      `a million steps: first charts after ${first.toFixed(0)} ms, all in view after ${all.toFixed(0)} ms; ` +
        `frames while the moment moves: median ${gaps[75]!.toFixed(0)} ms, worst ${gaps.at(-1)!.toFixed(0)} ms`,
    );
    await picture(page, "million");
    expect(all).toBeLessThan(20_000);
    expect(gaps[75]!).toBeLessThan(50);
    await close(page);
    await browser.close();
    await server.stop();
  },
);
