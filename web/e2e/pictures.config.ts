/** `make pictures`: draws docs/images anew. */

import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

export default defineConfig({
  root: fileURLToPath(new URL("..", import.meta.url)),
  test: { include: ["e2e/pictures.ts"], environment: "node", testTimeout: 600_000 },
});
