/**
 * Verifies the hash chain of an audit log: each row's hash covers the row before. The format is that of api-notes.md; the
 * detail counts byte for byte as it is sent, so it is cut out of the text, not parsed and written again.
 */

import { request } from "./api.js";

const PAGE = 1_000;
const FORMAT = "roundhouse audit 1";
const encoder = new TextEncoder();

/** Whether this browser can: it has hashes only on pages that came by HTTPS or from this machine. */
export const canVerify = globalThis.crypto?.subtle !== undefined;

/**
 * Verifies all rows, from the newest to the first.
 * @param {(done: number, total: number) => void} progress
 * @returns {Promise<{rows: number, wrong?: number, head?: string}>} the number of rows, and that of the newest wrong one
 */
export async function verifyChain(progress, signal) {
  let newer;
  let total = 0;
  let head;
  for (let before; ; ) {
    const response = await request("GET", "/audit", { query: { limit: PAGE, before }, signal });
    const rows = parseRows(await response.text());
    for (const row of rows) {
      if (newer === undefined) [total, head] = [row.id, row.hash];
      // Ids have no gaps: a row that was removed is missing.
      else if (row.id !== newer.id - 1 || (await hashOf(newer, row.hash)) !== newer.hash) return { rows: total, wrong: newer.id };
      newer = row;
    }
    progress(total - (newer?.id ?? 1) + 1, total);
    if (newer === undefined) return { rows: 0 };
    if (newer.id === 1) return (await hashOf(newer, "")) === newer.hash ? { rows: total, head } : { rows: total, wrong: 1 };
    if (rows.length === 0) return { rows: total, wrong: newer.id };
    before = newer.id;
  }
}

/** The rows of a page, each with the text of its detail. */
export function parseRows(text) {
  const { rows } = JSON.parse(text);
  const details = detailsOf(text);
  return rows.map((row, index) => ({ ...row, detailText: details[index] }));
}

/** The text of the field `detail` of each row: what stands in the list at depth 3 behind that name. */
function detailsOf(text) {
  const details = [];
  let depth = 0;
  let start = -1;
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at];
    if (character === '"') {
      const begin = at;
      for (at += 1; text[at] !== '"'; at += 1) if (text[at] === "\\") at += 1;
      // Within a row; as a value, the word would not be followed by a colon.
      if (depth === 3 && start < 0 && text.slice(begin, at + 1) === '"detail"' && text[at + 1] === ":") start = at + 2;
    } else if (character === "{" || character === "[") {
      depth += 1;
    } else if (character === "}" || character === "]") {
      depth -= 1;
      if (depth === 3 && start >= 0) {
        details.push(text.slice(start, at + 1));
        start = -1;
      }
    }
  }
  return details;
}

async function hashOf(row, previous) {
  const fields = [
    FORMAT,
    previous,
    row.product_id,
    String(row.id),
    String(Date.parse(row.at)),
    row.engine_id,
    row.user_id,
    row.event,
    row.duration_ms === null ? null : String(row.duration_ms),
    row.detailText,
  ].map((field) => (field === null ? null : encoder.encode(field)));
  const bytes = new Uint8Array(fields.reduce((size, field) => size + 8 + (field?.length ?? 0), 0));
  const view = new DataView(bytes.buffer);
  let at = 0;
  for (const field of fields) {
    view.setBigUint64(at, field === null ? 0xffff_ffff_ffff_ffffn : BigInt(field.length));
    at += 8;
    if (field !== null) bytes.set(field, at);
    at += field?.length ?? 0;
  }
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
