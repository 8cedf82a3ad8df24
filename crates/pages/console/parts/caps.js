/** What a running engine has used of its caps on tokens and costs. */

import { html } from "../lib/html.js";
import { engine } from "../lib/api.js";
import { count, plain } from "../lib/format.js";
import { useLoaded } from "../lib/load.js";
import { ErrorNotice, Loading } from "./notice.js";
import { Time } from "./time.js";

const SCOPES = { day: "today", task: "in each conversation" };
const UNITS = {
  tokens: { name: "Tokens", show: count },
  usd: { name: "Cost", show: (usd) => `$${usd.toFixed(2)}` },
};

/** @param {{user: string, newest: number | undefined}} props `newest` changes when the engine's state has. */
export function Caps({ user, newest }) {
  const { value, error, again } = useLoaded((signal) => engine(user).get("/usage/caps", { signal }), [user, newest]);
  return html`<section class="card whole" aria-labelledby="caps"><div class="head"><h2 id="caps">Used of its caps</h2>
      <button type="button" class="small" onClick=${again}>Read again</button></div>
    ${error !== undefined && html`<${ErrorNotice} error=${error} again=${again} />`}
    ${value === undefined && error === undefined && html`<${Loading} what="the caps" />`}
    ${value?.caps.length === 0 && html`<p class="quiet">No caps on tokens or costs are set. <code>caps</code> of the catalog's <code>gateway.json</code> sets them.</p>`}
    <ul class="caps">${(value?.caps ?? []).map((cap) => html`<${Cap} key=${`${cap.scope} ${cap.unit}`} cap=${cap} />`)}</ul>
  </section>`;
}

function Cap({ cap: { scope, unit, limit, used, resets_at: resets } }) {
  const { name, show } = UNITS[unit] ?? { name: String(unit), show: String };
  const title = plain(`${name} ${SCOPES[scope] ?? scope}`);
  // What one conversation has used is known of each alone.
  if (used === null) return html`<li><span>${title}</span><span>at most ${show(limit)}</span></li>`;
  return html`<li><span>${title}</span>
    <meter min="0" max=${limit} high=${limit * 0.8} optimum="0" value=${used} aria-label=${title}></meter>
    <span>${show(used)} of ${show(limit)}${resets !== null && html`<span class="quiet">, begins again <${Time} at=${resets} /></span>`}</span></li>`;
}
