/** Before all browser tests: two finished trainings that differ in their learning rate, in a folder of their own. */

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestProject } from "vitest/node";
import { ended, train } from "./harness";

declare module "vitest" {
  export interface ProvidedContext {
    runs: string;
  }
}

export default async function setup(project: TestProject) {
  const folder = await mkdtemp(join(tmpdir(), "cockpit-e2e-"));
  await Promise.all([
    ended(train(join(folder, "small"), "--lr", "0.01")),
    ended(train(join(folder, "large"), "--lr", "0.2", "--layer", "entry")),
  ]);
  project.provide("runs", folder);
  return () => rm(folder, { recursive: true, force: true });
}
