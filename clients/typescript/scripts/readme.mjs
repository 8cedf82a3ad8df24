// Writes README.md: `scripts/readme.md` with the examples in their places. With `--check` it must be there already.
import { readFileSync, writeFileSync } from "node:fs";

const at = (path) => new URL(`../${path}`, import.meta.url);
const example = (name) => readFileSync(at(`examples/${name}.ts`), "utf8").trimEnd();
const readme = readFileSync(at("scripts/readme.md"), "utf8").replace(/^@(\w+)$/gm, (_, name) =>
  example(name),
);
if (!process.argv.includes("--check")) writeFileSync(at("README.md"), readme);
else if (readFileSync(at("README.md"), "utf8") !== readme) {
  console.error("README.md is not made of scripts/readme.md and the examples: run `npm run readme`.");
  process.exitCode = 1;
}
