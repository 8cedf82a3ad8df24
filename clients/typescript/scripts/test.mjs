// Runs the compiled tests: all files, or those whose names contain an argument.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";

const folder = fileURLToPath(new URL("../build/test", import.meta.url));
const names = process.argv.slice(2);
const files = readdirSync(folder)
  .filter(
    (file) => file.endsWith(".test.js") && (names.length === 0 || names.some((name) => file.includes(name))),
  )
  .map((file) => `${folder}/${file}`);
const options = ["--enable-source-maps", "--test", "--test-concurrency=2", "--test-reporter=spec"];
process.exit(spawnSync(process.execPath, [...options, ...files], { stdio: "inherit" }).status ?? 1);
