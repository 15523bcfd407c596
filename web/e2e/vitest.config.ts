/** The browser tests: one file after the other, against a real server, real trainings and a real browser. */

import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

export default defineConfig({
  root: fileURLToPath(new URL("..", import.meta.url)),
  test: {
    include: ["e2e/**/*.test.ts"],
    environment: "node",
    globalSetup: "e2e/setup.ts",
    fileParallelism: false,
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
});
