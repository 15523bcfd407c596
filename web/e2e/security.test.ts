/** What other pages, other names of this machine, and texts inside runs must not be able to do. */

import { createServer, type Server as HttpServer } from "node:http";
import { join } from "node:path";
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { close, emptyFolder, ended, launch, open, picture, serve, train, type Server } from "./harness";

const TRAP = "<img src=x onerror=caught=1>";

let browser: Browser;
let server: Server;
let stranger: HttpServer;
let elsewhere: string;

beforeAll(async () => {
  const folder = await emptyFolder();
  await ended(train(join(folder, TRAP), "--steps", "12", "--layer", TRAP));
  browser = await launch("--host-resolver-rules=MAP evil.example 127.0.0.1");
  server = await serve(folder);
  stranger = createServer((_, answer) => answer.setHeader("Content-Type", "text/html").end("<p>another page</p>"));
  await new Promise<void>((done) => stranger.listen(0, "127.0.0.1", done));
  elsewhere = `http://evil.example:${(stranger.address() as { port: number }).port}/`;
});

afterAll(async () => {
  await browser?.close();
  await server?.stop();
  stranger?.close();
});

test("a foreign name for this machine is refused, even with the token", async () => {
  const page = await open(browser, "about:blank");
  const answer = await page.goto(server.url.replace("127.0.0.1", "evil.example"));
  expect(answer?.status()).toBe(400);
  await page.context().close();
});

test("without the token there is a page that says what to do, and nothing else", async () => {
  const page = await open(browser, "about:blank");
  const answer = await page.goto(server.base);
  expect(answer?.status()).toBe(401);
  expect(await page.innerText("body")).toMatch(/token/i);
  expect(await page.evaluate(async () => (await fetch("api/runs")).status)).toBe(401);
  await picture(page, "no-token");
  await page.context().close();
});

test("the token leaves the address bar and is not readable by scripts", async () => {
  const page = await open(browser, server.url);
  await page.waitForFunction(() => !location.href.includes("token"));
  expect(await page.evaluate(() => document.cookie)).toBe("");
  expect((await page.context().cookies()).map(({ httpOnly, sameSite }) => [httpOnly, sameSite])).toEqual([
    [true, "Strict"],
  ]);
  await close(page);
});

test("texts from runs stay texts", async () => {
  const page = await open(browser, server.url);
  await page.getByText(TRAP, { exact: false }).first().waitFor();
  await page.keyboard.press("3");
  await page.waitForTimeout(800);
  expect(await page.evaluate(() => "caught" in window)).toBe(false);
  expect(await page.locator("img[src=x]").count()).toBe(0);
  await picture(page, "trap");
  await close(page);
});

test("no request reaches a file", async () => {
  const page = await open(browser, server.url);
  await page.waitForFunction(() => !location.href.includes("token"));
  for (const path of [
    "api/runs/..%2f..%2f..%2fetc%2fpasswd",
    "api/runs/%2e%2e%2f%2e%2e%2frun.db",
    "api/runs/%2Fetc%2Fpasswd",
    "api/runs/%00",
    "assets/..%2f..%2fapp.py",
    "assets/%2e%2e/%2e%2e/guard.py",
    "..%2f..%2fpyproject.toml",
  ]) {
    const status = await page.evaluate(async (address) => (await fetch(address)).status, path);
    expect([path, status]).toEqual([path, 404]);
  }
  await page.context().close(); // the browser reports each 404 as an error
});

test("another page can neither read, nor frame, nor post", async () => {
  const page = await open(browser, server.url);
  await page.waitForFunction(() => !location.href.includes("token"));
  const other = await page.context().newPage(); // the same cookies
  await other.goto(elsewhere);
  const read = await other.evaluate(async (base) => {
    const tries = [
      fetch(`${base}api/runs`, { credentials: "include" }),
      fetch(`${base}api/runs`, { method: "POST", credentials: "include", body: "{}" }),
    ];
    return (await Promise.allSettled(tries)).map(({ status }) => status);
  }, server.base);
  expect(read).toEqual(["rejected", "rejected"]);
  const blind = await other.evaluate(async (base) => {
    const answer = await fetch(`${base}api/runs`, { mode: "no-cors", credentials: "include" }).catch(() => null);
    return answer === null || (answer.type === "opaque" && (await answer.text()) === "");
  }, server.base);
  expect(blind).toBe(true);
  await other.setContent(`<iframe src="${server.base}"></iframe>`);
  await other.waitForTimeout(500);
  const inside = await other.frames()[1]?.evaluate(() => document.getElementById("app")).catch(() => null);
  expect(inside ?? null).toBeNull();
  await page.context().close();
});
