/** What the audit log says about one user's engine. */

import { html, useEffect, useState } from "../lib/html.js";
import { get } from "../lib/api.js";
import { ErrorNotice, Loading } from "./notice.js";
import { AuditTable } from "./audit-table.js";

const PAGE = 20;

/** @param {{user: string, newest: number | undefined}} props `newest` changes when there is more at the top. */
export function History({ user, newest }) {
  const [state, setState] = useState({ rows: undefined, error: undefined, more: false });
  const load = async (before) => {
    try {
      const { rows } = await get("/audit", { query: { user_id: user, limit: PAGE, before } });
      setState((old) => {
        const kept = before === undefined ? [] : (old.rows ?? []);
        return { rows: [...kept, ...rows], error: undefined, more: rows.length === PAGE };
      });
    } catch (error) {
      setState((old) => ({ ...old, error }));
    }
  };
  useEffect(() => {
    load();
  }, [user, newest]);
  const { rows, error, more } = state;
  return html`<section class="card whole" aria-labelledby="history">
    <h2 id="history">History</h2>
    ${error !== undefined && html`<${ErrorNotice} error=${error} again=${() => load()} />`}
    ${rows === undefined ? error === undefined && html`<${Loading} what="the history" />` : html`<${AuditTable} rows=${rows} />`}
    ${more && html`<p><button type="button" onClick=${() => load(rows.at(-1).id)}>Show older</button></p>`}
  </section>`;
}
