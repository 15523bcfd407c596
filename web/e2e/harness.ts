/** What the browser tests stand on: the server, trainings and a browser, all real and all started here. */

import { spawn, type ChildProcess } from "node:child_process";
import { mkdirSync } from "node:fs";
import { mkdtemp } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import type { Place } from "../src/lib/address";
import type { Chart } from "../src/lib/chart";
import { chromium, type Browser, type BrowserContextOptions, type Page } from "playwright-core";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const ROOT = resolve(HERE, "../..");
export const PYTHON = process.env.PYTHON ?? "python3";
export const SCREENSHOTS = join(HERE, "screenshots");
mkdirSync(SCREENSHOTS, { recursive: true });

export const SIZES = {
  desk: { width: 1440, height: 900 },
  tablet: { width: 1024, height: 768 },
  phone: { width: 390, height: 844 },
};

/** Start Python on this checkout. */
export function python(...words: string[]): ChildProcess {
  return spawn(PYTHON, words, {
    cwd: ROOT,
    env: { ...process.env, PYTHONPATH: join(ROOT, "src"), OMP_NUM_THREADS: "1" },
    stdio: ["ignore", "pipe", "pipe"],
  });
}

/** Start a small training that writes a run into this folder. */
export function train(folder: string, ...options: string[]): ChildProcess {
  return python(join(HERE, "training.py"), folder, ...options);
}

/** Wait until a child has ended well; returns what it printed. */
export function ended(child: ChildProcess): Promise<string> {
  let said = "";
  let complained = "";
  child.stdout?.on("data", (text) => (said += text));
  child.stderr?.on("data", (text) => (complained += text));
  return new Promise((done, failed) =>
    child.on("close", (code) => (code === 0 ? done(said) : failed(new Error(`ended with ${code}: ${complained}`)))),
  );
}

/** Return a port that is free now, for servers that must come back on the same one. */
export function freePort(): Promise<number> {
  return new Promise((done, failed) => {
    const probe = createServer().on("error", failed);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address() as { port: number };
      probe.close(() => done(port));
    });
  });
}

/** Return a new folder; all of them lie in one that is removed after the last test. */
export const emptyFolder = (): Promise<string> => mkdtemp(join(process.env.E2E_FOLDER ?? tmpdir(), "cockpit-e2e-"));

export interface Server {
  /** With the token, as printed. */
  url: string;
  base: string;
  token: string;
  stop(): Promise<void>;
}

/** Start `cockpit show` and wait for the line with its address. */
export async function serve(folder: string, port = 0, token?: string): Promise<Server> {
  if (token) process.env.COCKPIT_TOKEN = token;
  else delete process.env.COCKPIT_TOKEN;
  const child = python("-m", "cockpit", "show", folder, "--port", String(port), "--no-browser");
  const closed = new Promise((done) => child.on("close", done));
  const url = await new Promise<string>((done, failed) => {
    let said = "";
    const hear = (text: Buffer) => {
      said += text;
      const found = /http:\/\/\S+/.exec(said);
      if (found) done(found[0]);
    };
    child.stdout!.on("data", hear);
    child.stderr!.on("data", (text) => (said += text));
    child.on("close", (code) => failed(new Error(`the server ended with ${code}: ${said}`)));
  });
  const { origin, searchParams } = new URL(url);
  return {
    url,
    base: `${origin}/`,
    token: searchParams.get("token") ?? "",
    async stop() {
      child.kill("SIGINT");
      await closed;
    },
  };
}

export function launch(...more: string[]): Promise<Browser> {
  return chromium.launch({
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", ...more],
  });
}

/** What went wrong on a page: console errors, exceptions, refused resources. A good page leaves it empty. */
export const problems = new WeakMap<Page, string[]>();

/** Open a page of its own (no cookies shared) and note what goes wrong on it. */
export async function open(browser: Browser, url: string, options: BrowserContextOptions = {}): Promise<Page> {
  const context = await browser.newContext({
    viewport: SIZES.desk,
    deviceScaleFactor: 1,
    reducedMotion: "reduce",
    colorScheme: "dark",
    ...options,
  });
  const page = await context.newPage();
  const noted: string[] = [];
  problems.set(page, noted);
  page.on("pageerror", (error) => noted.push(`exception: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error") noted.push(`console: ${message.text()} ${message.location().url}`);
  });
  await page.exposeBinding("refused", (_, text: string) => void noted.push(`CSP: ${text}`));
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) =>
      (window as unknown as { refused(text: string): void }).refused(`${event.violatedDirective} ${event.blockedURI}`),
    );
  });
  await page.goto(url);
  return page;
}

/** Close a page with its context; fail if anything went wrong on it. */
export async function close(page: Page, allowed?: RegExp): Promise<void> {
  const noted = (problems.get(page) ?? []).filter((text) => !allowed?.test(text));
  await page.context().close();
  if (noted.length) throw new Error(`on the page:\n${noted.join("\n")}`);
}

export const picture = (page: Page, name: string): Promise<Buffer> =>
  page.screenshot({ path: join(SCREENSHOTS, `${name}.png`) });

/** What the page shows, as data: the charts of the leading run by instrument, and where the page stands. */
export function shown(page: Page): Promise<{ place: Place; step: number; lastStep: number; charts: Record<string, Chart> }> {
  return page.evaluate(() => {
    const { state } = window.__cockpit;
    const charts = Object.fromEntries(
      [...state.charts].filter(([key]) => key.startsWith(`${state.lead}/`)).map(([key, chart]) => [key.split("/")[1]!, chart]),
    );
    return JSON.parse(JSON.stringify({ place: state.place, step: state.step, lastStep: state.lastStep, charts }));
  });
}

/** Wait until the charts in view are there and up to date; those out of view are not fetched. */
export async function settled(page: Page): Promise<void> {
  await page.waitForFunction(() => {
    const figures = [...document.querySelectorAll("article[data-instrument] > figure")].filter((figure) => {
      const { top, bottom } = figure.getBoundingClientRect();
      return bottom > 0 && top < window.innerHeight;
    });
    return figures.length > 0 && figures.every((figure) => !figure.classList.contains("busy"));
  });
}
