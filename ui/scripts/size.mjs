// What a browser loads before the first page: index.html, its script and styles, and what they import. Fails over the limit.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const LIMIT = 250 * 1024;
const root = join(import.meta.dirname, "../../src/perdure/server/ui");
const zipped = (path) => gzipSync(readFileSync(join(root, path)), { level: 9 }).length;

const seen = new Set();
function follow(path) {
  if (seen.has(path)) return;
  seen.add(path);
  const text = readFileSync(join(root, path), "utf8");
  // Static imports only: `import("...")` loads on demand.
  for (const [, name] of text.matchAll(/(?:from|import)\s*"\.\/([^"]+\.js)"/g)) follow(`assets/${name}`);
}
const html = readFileSync(join(root, "index.html"), "utf8");
for (const [, path] of html.matchAll(/(?:src|href)="\/([^"]+\.js)"/g)) follow(path);

const total = [...seen].reduce((sum, path) => sum + zipped(path), 0);
for (const path of seen) console.log(`${String(zipped(path)).padStart(8)}  ${path}`);
console.log(`initial JavaScript: ${total} bytes compressed, limit ${LIMIT}`);
if (total > LIMIT) process.exit(1);
