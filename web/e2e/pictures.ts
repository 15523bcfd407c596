/** The pictures of README and docs: real runs of the demo on the page, in a real browser. */

import { mkdirSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Page } from "playwright-core";
import { expect, test } from "vitest";
import { SIZES, emptyFolder, ended, launch, open, python, serve, settled } from "./harness";

const IMAGES = fileURLToPath(new URL("../../docs/images/", import.meta.url));
// a palette of 256 colours is enough for charts, and a third of the size
const REDUCE =
  "import sys; from PIL import Image; f = sys.argv[1];" +
  "Image.open(f).convert('RGB').quantize(256, dither=Image.Dither.NONE).save(f, optimize=True)";

// the demo's training with a learning rate of one's own
const TRAIN = `
import sys, torch
from cockpit import Cockpit
from cockpit.demo.training import network, train, watched_quantities
torch.manual_seed(0)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]), momentum=0.9)
with Cockpit(model, optimizer, quantities=watched_quantities("full", 200), run=sys.argv[1]) as cockpit:
    train(cockpit, model, optimizer, 200, 64, lambda moment: None)
`;

async function draw(page: Page, name: string): Promise<void> {
  await settled(page);
  await page.mouse.move(0, 0);
  await page.waitForTimeout(500);
  const path = join(IMAGES, `${name}.png`);
  await page.screenshot({ path });
  await ended(python("-c", REDUCE, path));
  expect(statSync(path).size).toBeLessThan(250_000);
}

test("docs/images", async () => {
  mkdirSync(IMAGES, { recursive: true });
  const folder = await emptyFolder();
  await ended(python("-c", TRAIN, join(folder, "timid"), "0.005"));
  await ended(python("-m", "cockpit.demo", "--quiet", "--run", join(folder, "demo"), "--steps", "200"));
  const [browser, server] = await Promise.all([launch(), serve(folder)]);

  for (const colorScheme of ["dark", "light"] as const) {
    const page = await open(browser, server.url, { colorScheme });
    await draw(page, `page-${colorScheme}`);
    await page.keyboard.press("3");
    await draw(page, `layers-${colorScheme}`);
    await page.context().close();
  }
  const page = await open(browser, server.url);
  await settled(page);
  for (const box of await page.locator("#rail input[type=checkbox]").all())
    if (!(await box.isChecked())) await box.check();
  await page.evaluate(() => (document.activeElement as HTMLElement).blur());
  await page.keyboard.press("5");
  await draw(page, "compare-dark");
  await page.context().close();
  const phone = await open(browser, server.url, { viewport: SIZES.phone, deviceScaleFactor: 2, colorScheme: "light" });
  await draw(phone, "phone-light");
  await browser.close();
  await server.stop();
  rmSync(folder, { recursive: true });
});
