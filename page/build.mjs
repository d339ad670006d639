// Build the page: node page/build.mjs, from anywhere. Needs Node 20 and npm; users of the package
// need neither, since the result is kept in src/shardwise/ui/static.
//
// packages.json names every package with its version and the hash of its archive. They are installed
// into a temporary folder, and a hash that differs ends the build. `--update` writes those of the
// newest versions instead.

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const source = join(here, "src");
const target = join(here, "..", "src", "shardwise", "ui", "static");
const list = join(here, "packages.json");
const wanted = JSON.parse(readFileSync(list, "utf8"));
const update = process.argv.includes("--update");

/** A hash of the sources, which the tests hold against the built page. */
export function sourceHash() {
  const hash = createHash("sha256");
  for (const name of readdirSync(source).sort()) hash.update(name).update(readFileSync(join(source, name)));
  return hash.digest("hex");
}

const folder = mkdtempSync(join(tmpdir(), "page-"));
try {
  const direct = Object.fromEntries(wanted.direct.map((name) => [name, update ? "latest" : wanted.packages[name].version]));
  const all = update ? direct : Object.fromEntries(Object.entries(wanted.packages).map(([name, p]) => [name, p.version]));
  writeFileSync(join(folder, "package.json"), JSON.stringify({ private: true, dependencies: all }));
  execFileSync("npm", ["install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], { cwd: folder, stdio: "inherit" });
  const lock = JSON.parse(readFileSync(join(folder, "node_modules", ".package-lock.json"), "utf8")).packages;
  const found = {};
  for (const [path, entry] of Object.entries(lock).sort()) {
    const name = path.replace(/^node_modules\//, "");
    if (entry.optional && !name.startsWith("@esbuild/linux-x64")) continue;
    found[name] = { version: entry.version, integrity: entry.integrity, license: entry.license };
  }
  if (update) {
    writeFileSync(list, `${JSON.stringify({ ...wanted, packages: found }, null, 1)}\n`);
  } else {
    for (const [name, entry] of Object.entries(found)) {
      const known = wanted.packages[name];
      if (!known || known.integrity !== entry.integrity) throw new Error(`${name} ${entry.version} is not the package of packages.json`);
    }
  }
  cpSync(source, join(folder, "src"), { recursive: true });
  const esbuild = createRequire(join(folder, "package.json"))("esbuild");
  const built = await esbuild.build({
    entryPoints: [join(folder, "src", "main.js")], bundle: true, minify: true, format: "iife", target: "es2020",
    charset: "ascii", legalComments: "none", write: false, metafile: true, absWorkingDir: folder,
    banner: { js: `/* Shardwise page, built by page/build.mjs; sources ${sourceHash()}. Contains the packages of page/packages.json, under their licenses: ISC, MIT, BSD-3-Clause, Apache-2.0, Unlicense. */` },
  });
  writeFileSync(join(target, "page.js"), built.outputFiles[0].contents);
  const css = await esbuild.build({ entryPoints: [join(folder, "src", "page.css")], minify: true, write: false });
  writeFileSync(join(target, "page.css"), css.outputFiles[0].contents);
  cpSync(join(source, "index.html"), join(target, "index.html"));
  console.log(`page.js ${built.outputFiles[0].contents.length} bytes, page.css ${css.outputFiles[0].contents.length} bytes`);
} finally {
  rmSync(folder, { recursive: true });
}
