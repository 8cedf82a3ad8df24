/** The product's policy: what a product may do, in words. An operator can replace it. */

import { html, useState } from "../lib/html.js";
import { get, path } from "../lib/api.js";
import { count, duration } from "../lib/format.js";
import { fleet } from "../lib/fleet.js";
import { useLoaded } from "../lib/load.js";
import { session } from "../lib/session.js";
import { useStore } from "../lib/store.js";
import { ErrorNotice, Loading } from "../parts/notice.js";
import { PolicyEditor } from "../parts/policy-editor.js";
import { Time } from "../parts/time.js";

export default function Policy() {
  const who = useStore(session);
  const engines = useStore(fleet().state).engines.length;
  const isOperator = who?.kind === "admin";
  const read = (signal) => (isOperator ? ofOperator(who.product.id, signal) : ofProduct(signal));
  const { value, error, again } = useLoaded(read, [who]);
  const [editing, setEditing] = useState(false);
  if (value === undefined) {
    return error === undefined ? html`<${Loading} what="the policy" />` : html`<${ErrorNotice} error=${error} again=${again} />`;
  }
  const { policy, name, slug, since } = value;
  return html`<div>
    <div class="title"><h1>Policy</h1>
      ${isOperator && html`<button type="button" class="primary" onClick=${() => setEditing(true)}>Edit</button>`}</div>
    <section class="card" aria-label="Policy">
      <dl class="facts">
        <dt>Product</dt><dd><bdi>${name}</bdi> (${slug})</dd>
        <dt>In force since</dt><dd><${Time} at=${since} /></dd>
        ${rules(policy, engines).map(([title, text]) => html`<dt key=${title}>${title}</dt><dd key=${`${title}-text`}>${text}</dd>`)}
      </dl>
      ${!isOperator && html`<p class="quiet small">Only the operator can change it.</p>`}
    </section>
    ${editing && html`<${PolicyEditor} productId=${who.product.id} policy=${policy} close=${() => setEditing(false)} done=${again} />`}
  </div>`;
}

async function ofOperator(id, signal) {
  const product = await get(path`/products/${id}`, { signal });
  return { policy: product.policy, name: product.display_name, slug: product.slug, since: product.updated_at ?? product.created_at };
}

/** A product reads its policy where each change of it is recorded. */
async function ofProduct(signal) {
  const newest = (event) => get("/audit", { query: { event, limit: 1 }, signal }).then(({ rows }) => rows[0]);
  const [registered, updated] = await Promise.all([newest("register"), newest("policy_update")]);
  const { display_name: name, slug, policy } = registered.detail;
  return { name, slug, policy: updated?.detail.to ?? policy, since: (updated ?? registered).at };
}

function rules(policy, engines) {
  const or = (value, show, none) => (value === undefined ? none : show(value));
  const versions = policy.allowed_engine_versions;
  return [
    ["Engines", or(policy.max_engines, (most) => `at most ${count(most)}; there are ${count(engines)}`, "no limit")],
    ["Admits", or(policy.rate_limit_rpm, (most) => `at most ${count(most)} in any 60 s`, "no limit")],
    ["Suspended", policy.suspended ? "yes: nothing but reading is possible" : "no"],
    ["Versions", or(versions, (list) => list.join(", ") || "none", "every version of the deployment's image")],
    ["Idle engines", or(policy.idle_sleep_threshold_s, (s) => (s === 0 ? "are never put to sleep" : `sleep after ${duration(s * 1_000)}`), "sleep as the deployment says")],
    ["Memory of an engine", or(policy.engine_memory_mb, (mb) => `${count(mb)} MiB`, "no limit")],
    ["Processors of an engine", or(policy.engine_cpus, count, "no limit")],
    ["Processes of an engine", or(policy.engine_pids, count, "no limit")],
    ["OAuth redirects to", or(policy.oauth_redirect_base_url, String, "the deployment's address")],
  ];
}
