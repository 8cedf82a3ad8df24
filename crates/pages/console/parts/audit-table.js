/** Rows of the audit log. */

import { html } from "../lib/html.js";
import { duration, plain } from "../lib/format.js";
import { to } from "../lib/router.js";
import { Time } from "./time.js";

/** @param {{rows: object[], users?: boolean}} props */
export function AuditTable({ rows, users = false }) {
  if (rows.length === 0) return html`<p class="quiet">Nothing is recorded.</p>`;
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Rows of the audit log">
    <table class="audit">
      <thead><tr><th scope="col">When</th><th scope="col">Event</th>${users && html`<th scope="col">User</th>`}
        <th scope="col">Took</th><th scope="col">Detail</th></tr></thead>
      <tbody>
        ${rows.map(
          (row) => html`<tr key=${row.id}>
            <td class="nowrap"><${Time} at=${row.at} /></td>
            <td class="nowrap">${row.event.replaceAll("_", " ")}</td>
            ${users && html`<td class="wrap">${row.user_id !== null && html`<a href=${to("engines", row.user_id)}><bdi>${plain(row.user_id)}</bdi></a>`}</td>`}
            <td class="nowrap">${row.duration_ms === null ? "–" : duration(row.duration_ms)}</td>
            <td class="wrap"><${Detail} detail=${row.detail} /></td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/** The fields of a row's detail that say something: states as a change, the others by name. */
function Detail({ detail }) {
  const { from, to: next, ...rest } = detail ?? {};
  const parts = [];
  if (typeof from === "string" && typeof next === "string") parts.push(`${from} → ${next}`);
  else if (typeof next === "string") parts.push(`→ ${next}`);
  else if (typeof from === "object" && from !== null) rest.from = from;
  if (typeof next === "object" && next !== null) rest.to = next;
  for (const [name, value] of Object.entries(rest)) {
    if (value !== null) parts.push(`${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`);
  }
  return html`<span>${plain(parts.join(" · ")) || "–"}</span>`;
}
