/** The product's audit log: filtered, read by pages, and verified. */

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { get } from "../lib/api.js";
import { canVerify, verifyChain } from "../lib/chain.js";
import { count, counted } from "../lib/format.js";
import { fleet } from "../lib/fleet.js";
import { useStore } from "../lib/store.js";
import { AuditTable } from "../parts/audit-table.js";
import { ErrorNotice, Loading } from "../parts/notice.js";

const PAGE = 100;
const EVENTS = [
  "provision", "provision_failed", "start", "stop", "sleep", "wake", "crash", "restart", "rotate_key", "destroy",
  "register", "policy_update", "mint_token", "revoke_token", "set_origins", "create_key", "revoke_key", "create_webhook",
  "update_webhook", "rotate_webhook_secret", "replay_webhook", "settle_dead_letters", "delete_webhook", "log_filter",
  "disable", "enable", "delete_product", "product_deleted", "question_asked", "question_settled", "repair",
];

export default function Audit() {
  const newest = useStore(fleet().rows).at(-1)?.id;
  const [filter, setFilter] = useState({ event: "", user: "" });
  const [state, setState] = useState({ rows: undefined, error: undefined, more: false });
  const current = useRef(0);
  const load = async (before) => {
    // Only the newest of several answers counts.
    const call = (current.current += 1);
    try {
      const query = { limit: PAGE, before, event: filter.event, user_id: filter.user };
      const { rows } = await get("/audit", { query });
      if (call !== current.current) return;
      setState((old) => ({
        rows: [...(before === undefined ? [] : (old.rows ?? [])), ...rows],
        error: undefined,
        more: rows.length === PAGE,
      }));
    } catch (error) {
      if (call === current.current) setState((old) => ({ ...old, error }));
    }
  };
  useEffect(() => {
    load();
  }, [filter, newest]);
  const { rows, error, more } = state;
  return html`<div>
    <div class="title"><h1>Audit log</h1></div>
    <${Verification} />
    <div class="tools">
      <input type="search" aria-label="Rows of one user" placeholder="User id, exactly" value=${filter.user}
        onChange=${(event) => setFilter({ ...filter, user: event.target.value })} />
      <label class="inline">Event
        <select value=${filter.event} onChange=${(event) => setFilter({ ...filter, event: event.target.value })}>
          <option value="">all</option>
          ${EVENTS.map((name) => html`<option key=${name} value=${name}>${name.replaceAll("_", " ")}</option>`)}
        </select></label>
    </div>
    ${error !== undefined && html`<${ErrorNotice} error=${error} again=${() => load()} />`}
    <section class="card" aria-label="Rows">
      ${rows === undefined ? error === undefined && html`<${Loading} what="the audit log" />` : html`<${AuditTable} rows=${rows} users />`}
      ${more && html`<p><button type="button" onClick=${() => load(rows.at(-1).id)}>Show older</button></p>`}
    </section>
  </div>`;
}

/** Checks that no row was changed, removed or put in between. */
function Verification() {
  const [state, setState] = useState({ phase: "none" });
  const abort = useRef();
  useEffect(() => () => abort.current?.abort(), []);
  const verify = async () => {
    abort.current = new AbortController();
    setState({ phase: "running", done: 0, total: 0 });
    try {
      const progress = (done, total) => setState({ phase: "running", done, total });
      setState({ phase: "done", ...(await verifyChain(progress, abort.current.signal)) });
    } catch (error) {
      setState({ phase: "failed", error });
    }
  };
  if (!canVerify) {
    return html`<p class="notice">The chain can be verified here over HTTPS or on the orchestrator's machine; or by
      <code>roundhouse audit verify</code>.</p>`;
  }
  const { phase, done, total, rows, wrong, head, error } = state;
  return html`<div class="verification">
    <button type="button" onClick=${verify} disabled=${phase === "running"}>Verify the chain</button>
    <span role="status">
      ${phase === "running" && `Verified ${count(done)} of ${counted(total, "row")} …`}
      ${phase === "done" && wrong === undefined && html`<strong class="good">All ${counted(rows, "row")} are as they were written.</strong>
        ${head !== undefined && html` <span class="quiet small wrap">The newest has the hash <code>${head.slice(0, 16)}…</code></span>`}`}
      ${phase === "done" && wrong !== undefined && html`<strong class="bad">The chain is broken at row ${count(wrong)}: it, or the row before, was changed or removed.</strong>`}
    </span>
    ${phase === "failed" && html`<${ErrorNotice} error=${error} />`}
  </div>`;
}
