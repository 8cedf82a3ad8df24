/** The table of all engines: live, searched, filtered and sorted here. */

import { html, useMemo, useState } from "../lib/html.js";
import { change } from "../lib/api.js";
import { count, counted, plain } from "../lib/format.js";
import { fleet } from "../lib/fleet.js";
import { go, to } from "../lib/router.js";
import { STATES } from "../lib/states.js";
import { useStore } from "../lib/store.js";
import { ActionDialog } from "../parts/dialog.js";
import { EngineAction, actionsOf } from "../parts/engine-action.js";
import { Empty, ErrorNotice, Loading } from "../parts/notice.js";
import { VirtualTable } from "../parts/rows.js";
import { State } from "../parts/state.js";
import { Time } from "../parts/time.js";
import { toast } from "../parts/toast.js";

const ROW_HEIGHT = 44;
const ORDERS = {
  user_id: (a, b) => (a.user_id < b.user_id ? -1 : 1),
  status: (a, b) => STATES.indexOf(a.status) - STATES.indexOf(b.status),
  engine_version: (a, b) => String(a.engine_version).localeCompare(String(b.engine_version), "en", { numeric: true }),
  created_at: (a, b) => (a.created_at < b.created_at ? -1 : 1),
  changed_at: (a, b) => ((a.changed_at ?? "") < (b.changed_at ?? "") ? -1 : 1),
};

export function Engines() {
  const { state } = fleet();
  const { phase, engines, loaded, total, error } = useStore(state);
  const [search, setSearch] = useState("");
  const [only, setOnly] = useState("");
  const [order, setOrder] = useState({ by: "created_at", down: true });
  const [dialog, setDialog] = useState();
  const counts = useMemo(() => countStates(engines), [engines]);
  const shown = useMemo(() => select(engines, search, only, order), [engines, search, only, order]);
  const close = () => setDialog(undefined);
  const shownColumns = useMemo(() => columns(order, setOrder, setDialog), [order]);
  if (phase === "failed") return html`<${ErrorNotice} error=${error} again=${() => location.reload()} />`;
  return html`<div class="fill">
    <div class="title">
      <h1>Engines</h1>
      <${Live} phase=${phase} />
      <button type="button" class="primary" onClick=${() => setDialog({ kind: "provision" })}>Provision an engine</button>
    </div>
    <div class="tools">
      <input type="search" aria-label="Search users and engine ids" placeholder="Search users and engine ids"
        value=${search} onInput=${(event) => setSearch(event.target.value)} />
      <label class="inline">State
        <select value=${only} onChange=${(event) => setOnly(event.target.value)}>
          <option value="">all (${count(engines.length)})</option>
          ${STATES.filter((name) => counts[name] > 0 || name === only).map(
            (name) => html`<option key=${name} value=${name}>${name} (${count(counts[name] ?? 0)})</option>`,
          )}
        </select>
      </label>
      <span class="quiet" role="status">${found(shown.length, engines.length)}</span>
    </div>
    ${error !== undefined && phase !== "live" && html`<${ErrorNotice} error=${error} />`}
    ${phase === "loading" && engines.length === 0
      ? html`<${Loading} what=${total === undefined ? "engines" : `engines: ${count(loaded)} of ${count(total)}`} />`
      : shown.length === 0
        ? html`<${Nothing} any=${engines.length > 0} reset=${() => (setSearch(""), setOnly(""))} />`
        : html`<${VirtualTable} kind="engines" label="Engines" rows=${shown} keyOf=${(row) => row.user_id}
            rowHeight=${ROW_HEIGHT} columns=${shownColumns} />`}
    ${dialog?.kind === "provision" && html`<${Provision} close=${close} />`}
    ${dialog?.kind === "action" && html`<${EngineAction} ...${dialog} close=${close} />`}
  </div>`;
}

function Live({ phase }) {
  const text = { live: "live", loading: "loading", reconnecting: "reconnecting" }[phase];
  return html`<span class=${`live live-${phase}`} role="status">${text}</span>`;
}

function Nothing({ any, reset }) {
  if (any) {
    return html`<${Empty} title="No engine matches"><p><button type="button" onClick=${reset}>Show all</button></p><//>`;
  }
  return html`<${Empty} title="There are no engines yet">
    <p>An engine is provisioned here, or when your backend admits a user with <code>auto_provision</code>.</p>
  <//>`;
}

function columns(order, setOrder, setDialog) {
  const sorted = (by, title) => {
    const isBy = order.by === by;
    const mark = isBy ? (order.down ? " ↓" : " ↑") : "";
    const label = `Sort by ${title.toLowerCase()}${isBy ? `, now ${order.down ? "descending" : "ascending"}` : ""}`;
    return html`<button type="button" class="plain sort" aria-label=${label}
      onClick=${() => setOrder({ by, down: isBy ? !order.down : false })}>${title}${mark}</button>`;
  };
  const act = (action, engine) => setDialog({ kind: "action", action, user: engine.user_id });
  return [
    {
      name: "user",
      title: sorted("user_id", "User"),
      cell: (row) => html`<a href=${to("engines", row.user_id)} title=${plain(row.user_id)}><bdi>${plain(row.user_id)}</bdi></a>`,
    },
    { name: "state", title: sorted("status", "State"), cell: (row) => html`<${State} state=${row.status} />` },
    { name: "version", title: sorted("engine_version", "Version"), cell: (row) => row.engine_version ?? "–" },
    { name: "created", title: sorted("created_at", "Created"), cell: (row) => html`<${Time} at=${row.created_at} />` },
    {
      name: "changed",
      title: sorted("changed_at", "Changed"),
      cell: (row) => html`<${Time} at=${row.changed_at} never="–" />`,
    },
    {
      name: "actions",
      title: html`<span class="sr">Actions</span>`,
      cell: (row) =>
        actionsOf(row.status).map(
          ({ action, title }) => html`<button key=${action} type="button" class="small"
            aria-label=${`${title} ${plain(row.user_id)}`} onClick=${() => act(action, row)}>${title}</button>`,
        ),
    },
  ];
}

function Provision({ close }) {
  const [user, setUser] = useState("");
  const [version, setVersion] = useState("");
  const run = async () => {
    const json = { user_id: user, ...(version.trim() === "" ? {} : { engine_version: version.trim() }) };
    await change("POST", "/engines/provision", { json });
    toast(`Provisioned an engine for ${plain(user)}`);
    go("engines", user);
  };
  return html`<${ActionDialog} title="Provision an engine" action="Provision" run=${run} close=${close} ready=${user !== ""}>
    <label class="field"><span>User id</span>
      <input autocomplete="off" spellcheck=${false} value=${user} onInput=${(event) => setUser(event.target.value)} />
    </label>
    <label class="field"><span>Version <span class="quiet">(optional; the deployment's by default)</span></span>
      <input autocomplete="off" spellcheck=${false} placeholder="svc-engine:1.2.3" value=${version}
        onInput=${(event) => setVersion(event.target.value)} />
    </label>
  <//>`;
}

function found(shown, all) {
  return shown === all ? counted(all, "engine") : `${count(shown)} of ${counted(all, "engine")}`;
}

export function countStates(engines) {
  const counts = {};
  for (const { status } of engines) counts[status] = (counts[status] ?? 0) + 1;
  return counts;
}

function select(engines, search, only, { by, down }) {
  const text = search.trim().toLowerCase();
  const matches = ({ user_id: user, engine_id: id, status }) =>
    (only === "" || status === only) && (text === "" || user.toLowerCase().includes(text) || id.includes(text));
  const rows = engines.filter(matches).sort(ORDERS[by]);
  return down ? rows.reverse() : rows;
}
