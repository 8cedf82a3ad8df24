// Removes the folders that are named on the command line, which only builds write.
import { rmSync } from "node:fs";

for (const folder of process.argv.slice(2))
  rmSync(new URL(`../${folder}`, import.meta.url), { recursive: true, force: true });
