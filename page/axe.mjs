// Fetch axe-core, which looks for what shuts people out of a page: node page/axe.mjs FOLDER.
//
// packages.json names its version and the hash of its archive; npm fetches it from wherever it is
// set up to. It is used by tests alone, so no copy of it is kept here.

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const NAME = "axe-core";
const here = dirname(fileURLToPath(import.meta.url));
const { version, integrity } = JSON.parse(readFileSync(join(here, "packages.json"), "utf8")).tests[NAME];
const [target] = process.argv.slice(2);
if (!target) throw new Error("node page/axe.mjs FOLDER: name the folder that gets axe.min.js");

const folder = mkdtempSync(join(tmpdir(), "axe-"));
try {
  const told = execFileSync("npm", ["pack", `${NAME}@${version}`, "--json", "--silent", "--pack-destination", folder], { cwd: folder });
  const archive = join(folder, JSON.parse(told)[0].filename);
  const hash = createHash("sha512").update(readFileSync(archive)).digest("base64");
  if (`sha512-${hash}` !== integrity) throw new Error(`${NAME} ${version} is not the package of packages.json`);
  execFileSync("tar", ["-xzf", archive, "-C", folder]);
  mkdirSync(target, { recursive: true });
  copyFileSync(join(folder, "package", "axe.min.js"), join(target, "axe.min.js"));
} finally {
  rmSync(folder, { recursive: true });
}
