/** Replaces a policy: as JSON, checked while it is written, with what would change. */

import { html, useState } from "../lib/html.js";
import { change, path } from "../lib/api.js";
import { ActionDialog } from "./dialog.js";
import { toast } from "./toast.js";

const FIELDS = {
  max_engines: "number",
  rate_limit_rpm: "number",
  suspended: "boolean",
  allowed_engine_versions: "list",
  idle_sleep_threshold_s: "number",
  oauth_redirect_base_url: "string",
  engine_memory_mb: "number",
  engine_cpus: "number",
  engine_pids: "number",
};

export function PolicyEditor({ productId, policy, close, done }) {
  const [text, setText] = useState(JSON.stringify(policy, null, 2));
  const { value, problem } = check(text);
  const changes = value === undefined ? [] : differences(policy, value);
  const run = async () => {
    await change("PUT", path`/products/${productId}/policy`, { json: { policy: value } });
    toast("The policy is in force");
    done();
  };
  return html`<${ActionDialog} title="Edit the policy" action="Put in force" run=${run} close=${close}
    ready=${problem === undefined && changes.length > 0}>
    <label class="field"><span>Policy</span>
      <textarea class="code-input" rows="10" spellcheck=${false} aria-describedby="policy-problem" value=${text}
        onInput=${(event) => setText(event.target.value)}></textarea></label>
    <p id="policy-problem" class=${problem === undefined ? "quiet small" : "bad small"} role="status">
      ${problem ?? `Fields: ${Object.keys(FIELDS).join(", ")}. What is left out does not limit.`}</p>
    <h3>What changes</h3>
    ${changes.length === 0
      ? html`<p class="quiet">Nothing yet.</p>`
      : html`<ul class="diff-list">${changes.map(
          ({ name, from, to }) => html`<li key=${name}><code>${name}</code><span class="removed">− ${from}</span><span class="added">+ ${to}</span></li>`,
        )}</ul>`}
  <//>`;
}

export function check(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { problem: `This is not JSON yet: ${error.message}` };
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) return { problem: "A policy is an object." };
  for (const [name, field] of Object.entries(value)) {
    const type = Object.hasOwn(FIELDS, name) ? FIELDS[name] : undefined;
    if (type === undefined) return { problem: `There is no field ${name}.` };
    if (field !== null && typeOf(field) !== type) return { problem: `${name} must be a ${type}.` };
    if (type === "number" && field < 0) return { problem: `${name} must not be negative.` };
  }
  return { value };
}

function typeOf(value) {
  return Array.isArray(value) ? "list" : typeof value;
}

function differences(before, after) {
  const names = Object.keys(FIELDS).filter((name) => JSON.stringify(before[name] ?? null) !== JSON.stringify(after[name] ?? null));
  const show = (value) => (value === undefined || value === null ? "no limit" : JSON.stringify(value));
  return names.map((name) => ({ name, from: show(before[name]), to: show(after[name]) }));
}
