import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

// `just ui` names the server to develop against; its API and sign-in routes are reached through Vite.
const server = process.env.PERDURE_UI_SERVER ?? "http://127.0.0.1:8600";

/** `main.ts` imports `app.tsx` when it runs; the browser is to load it, and what it imports, from the beginning. */
const preloadedApp: Plugin = {
  name: "preloaded-app",
  transformIndexHtml: {
    order: "post",
    handler(_, { bundle = {} }) {
      const chunks = Object.values(bundle).filter((file) => file.type === "chunk");
      const imports = new Map(chunks.map((chunk) => [chunk.fileName, chunk.imports]));
      const wanted = new Set(chunks.filter((chunk) => chunk.name === "app").map((chunk) => chunk.fileName));
      for (const name of wanted) for (const needed of imports.get(name) ?? []) wanted.add(needed);
      const entries = new Set(chunks.filter((chunk) => chunk.isEntry).map((chunk) => chunk.fileName));
      return [...wanted]
        .filter((name) => !entries.has(name))
        .map((name) => ({
          tag: "link",
          attrs: { rel: "modulepreload", crossorigin: true, href: `/${name}` },
          injectTo: "head",
        }));
    },
  },
};

/** The script that runs first and what it imports; "\0" begins the names of the bundler's own modules. */
const first = ["/src/main.ts", "/src/api/early.ts", "/src/pages.ts", "\0"];

/**
 * What three pages or more use is one file: a request for each small part costs more than its bytes. The first script stays out of it, so
 * that it does not wait for that file.
 */
const shared = {
  name: "shared",
  minShareCount: 3,
  includeDependenciesRecursively: false,
  test: (id: string) => !first.some((part) => id.includes(part)),
};

export default defineConfig({
  plugins: [react(), preloadedApp],
  build: {
    outDir: "../src/perdure/server/ui",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the content security policy allows no data: URLs
    modulePreload: { polyfill: false },
    target: "es2023",
    chunkSizeWarningLimit: 2000,
    rolldownOptions: { output: { codeSplitting: { groups: [shared] } } },
  },
  server: {
    // The server takes requests of its own pages only; through Vite they are.
    proxy: Object.fromEntries(
      ["/api", "/auth", "/errors", "/static", "/links"].map((path) => [
        path,
        { target: server, changeOrigin: true, headers: { Origin: server } },
      ]),
    ),
  },
  test: { environment: "node", include: ["src/**/*.test.{ts,tsx}"] },
});
