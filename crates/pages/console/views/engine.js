/** One engine: its state and why, what can be done about it, its history and its log. */

import { html, useEffect, useState } from "../lib/html.js";
import { change, get, path } from "../lib/api.js";
import { count, plain } from "../lib/format.js";
import { fleet } from "../lib/fleet.js";
import { useLoaded } from "../lib/load.js";
import { session } from "../lib/session.js";
import { to } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import { Caps } from "../parts/caps.js";
import { ActionDialog } from "../parts/dialog.js";
import { EngineAction, actionsOf } from "../parts/engine-action.js";
import { EngineLog } from "../parts/engine-log.js";
import { History } from "../parts/history.js";
import { Empty, ErrorNotice, Loading } from "../parts/notice.js";
import { State } from "../parts/state.js";
import { Time } from "../parts/time.js";
import { toast } from "../parts/toast.js";

export default function Engine({ user }) {
  const { state, rows } = fleet();
  const live = useStore(state);
  const events = useStore(rows).filter((row) => row.user_id === user);
  const newest = events.at(-1)?.id;
  const read = async (signal) => {
    const [engine, why] = await Promise.all([
      get(path`/engines/${user}`, { signal }),
      get(path`/engines/${user}/explain`, { signal }),
    ]);
    // The key stays out of what is drawn, until somebody asks for it.
    delete engine.api_key;
    return { engine, why };
  };
  const { value, error, again } = useLoaded(read, [user, newest]);
  const [dialog, setDialog] = useState();
  const [key, setKey] = useState();
  const close = () => setDialog(undefined);
  if (error?.code === "ENGINE_NOT_FOUND") return html`<${Gone} user=${user} events=${events} />`;
  if (value === undefined) {
    return error === undefined ? html`<${Loading} what="the engine" />` : html`<${ErrorNotice} error=${error} again=${again} />`;
  }
  const { engine, why } = value;
  const status = live.engines.find((known) => known.user_id === user)?.status ?? engine.status;
  const act = (action) => setDialog({ action });
  return html`<div>
    <p class="small"><a href="#/engines">Engines</a></p>
    <div class="title">
      <h1><bdi>${plain(user)}</bdi></h1>
      <${State} state=${status} />
      <div class="actions top">
        ${session.value?.kind === "platform" &&
        html`<a class="button" href=${to("engines", user, "chat")}>Chat</a>
          <a class="button quiet-button" href=${to("engines", user, "agent")}>Memory and skills</a>`}
        ${actionsOf(status).map(
          ({ action, title }) => html`<button key=${action} type="button" onClick=${() => act(action)}>${title}</button>`,
        )}
        ${status === "running" && html`<button type="button" onClick=${() => act("rotate")}>Rotate key</button>`}
      </div>
    </div>
    ${error !== undefined && html`<${ErrorNotice} error=${error} again=${again} />`}
    ${key !== undefined && html`<${NewKey} value=${key} close=${() => setKey(undefined)} />`}
    <div class="columns">
      <${Why} why=${why} />
      <${Facts} engine=${engine} why=${why} change=${() => setDialog({ version: true })} />
      ${status === "running" && session.value?.kind === "platform" && html`<${Caps} user=${user} newest=${newest} />`}
      <${History} user=${user} newest=${newest} />
      <${EngineLog} user=${user} running=${status === "running"} />
    </div>
    ${dialog?.version && html`<${MoveVersion} user=${user} engine=${engine} close=${close} done=${again} />`}
    ${dialog?.action !== undefined &&
    html`<${EngineAction} action=${dialog.action} user=${user} close=${close}
      done=${(result) => (setKey(result?.new_api_key), again())} />`}
  </div>`;
}

function Gone({ user, events }) {
  const wasHere = events.some((row) => row.event === "destroy");
  return html`<${Empty} title=${wasHere ? "The engine was destroyed" : "This user has no engine"}>
    <p class="wrap"><bdi>${plain(user)}</bdi></p>
    <p><a href="#/engines">All engines</a></p>
  <//>`;
}

function Why({ why }) {
  const { last_transition: last, next_action: next, awake_because: awake, restart_attempt: restarts } = why;
  return html`<section class="card" aria-labelledby="why">
    <h2 id="why">Why it is ${why.status}</h2>
    ${last === null
      ? html`<p>The audit log has no change of its state.</p>`
      : html`<p>${words(last.event)}${last.reason === null ? "" : html` (<strong>${words(last.reason).toLowerCase()}</strong>)`}, ${html`<${Time} at=${last.at} />`}${last.from !== null && last.to !== null ? `; before that it was ${last.from}` : ""}.</p>`}
    ${awake !== null && awake.length > 0 && html`<ul class="reasons">${awake.map((reason) => html`<li key=${reason}>${reason}</li>`)}</ul>`}
    <p>${next.action === "none"
      ? "Nothing happens next without a call."
      : html`Next: ${next.action === "sleep" ? "it is put to sleep" : "it is restarted"} ${" "}<${Time} at=${next.at} never="soon" />${next.action === "sleep" ? ", unless it is used by then" : ""}.`}</p>
    ${restarts !== null && restarts.n > 0 && html`<p>Restart attempts: ${count(restarts.n)} of ${count(restarts.max)}.</p>`}
  </section>`;
}

function Facts({ engine, why, change: changeVersion }) {
  const { caps } = why;
  return html`<section class="card" aria-labelledby="facts">
    <div class="head"><h2 id="facts">Details</h2>
      <button type="button" class="small" onClick=${changeVersion}>Change version</button></div>
    <dl class="facts">
      <dt>Engine</dt><dd><code>${engine.engine_id}</code></dd>
      <dt>Version</dt><dd>${engine.engine_version}</dd>
      <dt>Address</dt><dd>${engine.url === null ? "–" : html`<code>${engine.url}</code>`}</dd>
      <dt>Created</dt><dd><${Time} at=${engine.created_at} /></dd>
      <dt>Last healthy</dt><dd><${Time} at=${engine.last_health_at} /></dd>
      <dt>Limits</dt><dd>${limits(caps)}</dd>
    </dl>
  </section>`;
}

function limits(caps) {
  if (caps === null) return "none set by the policy";
  const parts = [
    caps.memory_mb !== null && `${count(caps.memory_mb)} MiB of memory`,
    caps.cpus !== null && `${count(caps.cpus)} processors`,
    caps.pids !== null && `${count(caps.pids)} processes and threads`,
  ].filter(Boolean);
  return `${parts.join(", ")}${caps.applied ? "" : " (not in force here)"}`;
}

function NewKey({ value, close }) {
  const copy = async () => {
    await navigator.clipboard?.writeText(value);
    toast("Copied");
  };
  return html`<section class="notice" aria-label="The new key">
    <p><strong>The engine's new key.</strong> Whoever calls the engine directly needs it; an admit returns it, too.</p>
    <div class="secret"><code>${value}</code>
      ${navigator.clipboard !== undefined && html`<button type="button" onClick=${copy}>Copy</button>`}
      <button type="button" onClick=${close}>Hide</button></div>
  </section>`;
}

function MoveVersion({ user, engine, close, done }) {
  const [version, setVersion] = useState("default");
  useEffect(() => setVersion("default"), [user]);
  const run = async () => {
    await change("PUT", path`/engines/${user}/version`, { json: { engine_version: version.trim() } });
    toast(`Moved ${plain(user)}`);
    done();
  };
  return html`<${ActionDialog} title="Change the version" action="Change" run=${run} close=${close} ready=${version.trim() !== ""}>
    <p>It runs <code>${engine.engine_version}</code>. It is stopped, its brain is copied, and it is started on the other
      version; if it does not come up, both are restored.</p>
    <label class="field"><span>Version <span class="quiet">(<code>default</code>: the deployment's)</span></span>
      <input autocomplete="off" spellcheck=${false} value=${version} onInput=${(event) => setVersion(event.target.value)} />
    </label>
  <//>`;
}

/** `health_check_failed` → `Health check failed` */
export function words(name) {
  const text = String(name).replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}
