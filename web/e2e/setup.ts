/** Before all browser tests: two finished trainings that differ in their learning rate, in a folder of their own. */

import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { TestProject } from "vitest/node";
import { emptyFolder, ended, train } from "./harness";

declare module "vitest" {
  export interface ProvidedContext {
    runs: string;
  }
}

export default async function setup(project: TestProject) {
  const folder = await emptyFolder();
  process.env.E2E_FOLDER = folder;
  const runs = join(folder, "runs");
  await Promise.all([
    ended(train(join(runs, "small"), "--lr", "0.01")),
    ended(train(join(runs, "large"), "--lr", "0.2", "--layer", "entry")),
  ]);
  project.provide("runs", runs);
  return () => rm(folder, { recursive: true, force: true });
}
