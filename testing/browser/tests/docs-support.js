// What the tests of the documentation share.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { screenshot } from "./support.js";

const AXE = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

export async function assertAccessible(page, name) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html).join("\n")}`);
  assert.deepEqual(found, [], name);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
  assert.ok(!wide, `${name} is wider than the screen`);
}

export const shot = screenshot;
