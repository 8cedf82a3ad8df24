/** What a user's agent knows and can use: memory, skills, connections to tool servers, and what it has cost. */

import { html, useState } from "../lib/html.js";
import { change, engine, path } from "../lib/api.js";
import { count, duration, plain } from "../lib/format.js";
import { useLoaded } from "../lib/load.js";
import { to } from "../lib/router.js";
import { ActionDialog } from "../parts/dialog.js";
import { Connections } from "../parts/connections.js";
import { ErrorNotice, Loading } from "../parts/notice.js";
import { Time } from "../parts/time.js";
import { toast } from "../parts/toast.js";

const PAGE = 50;

export default function Agent({ user }) {
  const wake = (signal) => change("POST", path`/engines/${user}/admit`, { json: { auto_wake: true }, signal });
  const { value, error, again } = useLoaded(wake, [user]);
  const title = html`<p class="small"><a href=${to("engines", user)}>← <bdi>${plain(user)}</bdi></a></p>
    <div class="title"><h1>Memory and skills</h1></div>`;
  if (error !== undefined) return html`${title}<${ErrorNotice} error=${error} again=${again} />`;
  if (value === undefined) return html`${title}<${Loading} what="the engine" />`;
  if (!value.admitted) {
    const denied = new Error(`The engine cannot be used: ${value.reason.replaceAll("_", " ")}. Start it first.`);
    return html`${title}<${ErrorNotice} error=${denied} again=${again} />`;
  }
  return html`${title}<div class="columns">
    <${Knowledge} user=${user} />
    <${Skills} user=${user} />
    <${Connections} user=${user} />
    <${Usage} user=${user} />
  </div>`;
}

function Knowledge({ user }) {
  const [search, setSearch] = useState("");
  const [forgetting, setForgetting] = useState();
  const read = async (signal) => {
    if (search !== "") {
      const json = { query: search, limit: PAGE };
      return engine(user).send("POST", "/memory/knowledge/search", { json, signal });
    }
    return engine(user).get("/memory/knowledge", { query: { limit: PAGE }, signal });
  };
  const { value, error, again } = useLoaded(read, [user, search]);
  const entries = value?.knowledge ?? value?.results ?? [];
  const forget = async () => {
    await engine(user).send("DELETE", path`/memory/knowledge/${forgetting.id}`);
    toast("Forgotten");
    again();
  };
  return html`<section class="card" aria-labelledby="knowledge"><h2 id="knowledge">What it knows about its user</h2>
    <div class="tools"><input type="search" aria-label="Search what it knows" placeholder="Search" value=${search}
      onChange=${(event) => setSearch(event.target.value.trim())} /></div>
    ${error !== undefined && html`<${ErrorNotice} error=${error} again=${again} />`}
    ${value !== undefined && entries.length === 0 && html`<p class="quiet">${search === "" ? "Nothing yet. It learns from conversations." : "Nothing is found."}</p>`}
    <ul class="entries">${entries.map(
      (entry) => html`<li key=${entry.id}><div class="wrap">${entry.content}</div>
        <p class="quiet small"><${Time} at=${entry.created_at} /> · ${plain(entry.source)}
          ${" "}<button type="button" class="plain small underline" onClick=${() => setForgetting(entry)}>Forget</button></p></li>`,
    )}</ul>
    ${value?.total > entries.length && html`<p class="quiet small">${count(value.total)} in all; search for the others.</p>`}
    ${forgetting !== undefined &&
    html`<${ActionDialog} title="Forget this" action="Forget" danger run=${forget} close=${() => setForgetting(undefined)}>
      <p class="wrap">${forgetting.content}</p><//>`}
  </section>`;
}

function Skills({ user }) {
  const { value, error, again } = useLoaded((signal) => engine(user).get("/skills", { signal }), [user]);
  return html`<section class="card" aria-labelledby="skills"><h2 id="skills">Skills</h2>
    ${error !== undefined && html`<${ErrorNotice} error=${error} again=${again} />`}
    ${value?.skills.length === 0 && html`<p class="quiet">It has no skills.</p>`}
    <ul class="entries">${(value?.skills ?? []).map((skill) => html`<${Skill} key=${skill.name} user=${user} skill=${skill} />`)}</ul>
  </section>`;
}

function Skill({ user, skill }) {
  const [full, setFull] = useState();
  const open = async (event) => {
    if (!event.target.open || full !== undefined) return;
    try {
      setFull(await engine(user).get(path`/skills/${skill.name}`));
    } catch (error) {
      setFull({ prompt: error.message });
    }
  };
  return html`<li><details onToggle=${open}>
    <summary><strong>${plain(skill.name)}</strong> <span class="quiet small">${skill.source === "platform" ? "of the product" : "its user's own"}</span></summary>
    <p>${skill.description}</p>
    ${full !== undefined && html`<pre class="code" tabindex="0" role="group" aria-label="Instructions">${full.prompt ?? "It has scripts only."}</pre>`}
  </details></li>`;
}

function Usage({ user }) {
  const { value, error, again } = useLoaded((signal) => engine(user).get("/usage", { query: { limit: 14 }, signal }), [user]);
  const total = value?.total;
  return html`<section class="card" aria-labelledby="usage"><h2 id="usage">Usage</h2>
    ${error !== undefined && html`<${ErrorNotice} error=${error} again=${again} />`}
    ${total !== undefined &&
    html`<dl class="facts">
      <dt>Model calls</dt><dd>${count(total.calls)}, ${count(total.failed_calls)} of them failed</dd>
      <dt>Tokens</dt><dd>${count(total.input_tokens)} in, ${count(total.output_tokens)} out</dd>
      <dt>Cost</dt><dd>${total.cost_usd === null ? "no prices are configured" : `$${total.cost_usd.toFixed(4)}`}</dd>
      <dt>Tools</dt><dd>${count(total.tool_calls)} calls, ${duration(total.tool_time_ms)}</dd>
    </dl>`}
  </section>`;
}
