import { svelte } from "@sveltejs/vite-plugin-svelte";
import { svelteTesting } from "@testing-library/svelte/vite";
import { defineConfig } from "vitest/config";

/** Where `npm run dev` finds the runs: a `cockpit show` started beside it. */
const server = process.env.COCKPIT_SERVER ?? "http://127.0.0.1:6116";

export default defineConfig({
  // Relative addresses: the page also works under a proxy's prefix and, inlined, from a file.
  base: "./",
  plugins: [svelte(), svelteTesting()],
  build: {
    outDir: "../src/cockpit/web/dist",
    emptyOutDir: true,
    sourcemap: false,
    target: "es2022",
    // One script and one style sheet, so that a report can carry them inline.
    cssCodeSplit: false,
    modulePreload: false,
    assetsInlineLimit: 16384,
    rollupOptions: { output: { codeSplitting: false } },
  },
  server: {
    host: "127.0.0.1",
    proxy: { "/api": { target: server, changeOrigin: true } },
  },
  test: {
    environment: "jsdom",
    include: ["test/**/*.test.ts"],
    setupFiles: ["test/setup.ts"],
  },
});
