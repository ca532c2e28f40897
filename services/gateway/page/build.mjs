// Build the page into dist/: one script and one style sheet named by their content, index.html, the licences of what
// the script contains, and a .gz beside each. `node build.mjs FOLDER` builds elsewhere, for the test that compares.

import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const home = fileURLToPath(new URL(".", import.meta.url));
const out = process.argv[2] ?? join(home, "dist");
const PACKAGES = ["preact", "@preact/signals", "@preact/signals-core", "uplot"];

const built = await build({
  absWorkingDir: home,
  entryPoints: { app: "src/main.tsx" },
  entryNames: "[name]-[hash]",
  outdir: out,
  bundle: true,
  minify: true,
  write: false,
  format: "esm",
  target: ["chrome109", "firefox115", "safari16"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  define: { "process.env.NODE_ENV": '"production"' },
});

const files = new Map(built.outputFiles.map(({ path, contents }) => [path.split("/").at(-1), Buffer.from(contents)]));
const named = (end) => [...files.keys()].find((name) => name.endsWith(end));
const html = await readFile(join(home, "src/index.html"), "utf8");
files.set("index.html", Buffer.from(html.replace("app.js", named(".js")).replace("app.css", named(".css"))));
const licences = await Promise.all(
  PACKAGES.map(async (name) => `${name}\n\n${await readFile(join(home, "node_modules", name, "LICENSE"), "utf8")}`),
);
files.set("licences.txt", Buffer.from(licences.join("\n\n")));

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
for (const [name, contents] of files) {
  const packed = gzipSync(contents, { level: 9 });
  await writeFile(join(out, name), contents);
  await writeFile(join(out, `${name}.gz`), packed);
  console.log(`${name}: ${contents.length} bytes, ${packed.length} compressed`);
}
