/** What a product's engines, or all products, have used: by day as plot and table, or by engine or product. */

import { html, useState } from "../lib/html.js";
import { get } from "../lib/api.js";
import { OUTCOMES, dayOf } from "../lib/admits.js";
import { count, plain } from "../lib/format.js";
import { useLoaded } from "../lib/load.js";
import { to } from "../lib/router.js";
import { session } from "../lib/session.js";
import { useStore } from "../lib/store.js";
import { ErrorNotice, Loading } from "../parts/notice.js";
import { Plot } from "../parts/plot.js";

const DAY = 86_400_000;
const PAGE = 500;
const RANGES = [
  [7, "7 days"],
  [30, "30 days"],
  [90, "90 days"],
  [400, "400 days, all that is kept"],
];
const cost = (usd) => `$${usd.toFixed(usd >= 100 || usd === 0 ? 2 : 4)}`;
/** What the plot can show: a title, its series, and how its numbers read. */
const PLOTS = {
  tokens: {
    title: "Tokens per day",
    series: [
      ["in", 2, ({ usage }) => usage.input_tokens],
      ["out", 1, ({ usage }) => usage.output_tokens],
    ],
  },
  turns: { title: "Turns per day", series: [["turns", 1, ({ usage }) => usage.turns]] },
  cost: { title: "Cost per day", unit: cost, series: [["cost", 5, ({ usage }) => usage.cost_usd]] },
  admits: {
    title: "Admits per day",
    series: OUTCOMES.map((name, at) => [name, [1, 5, 6, 4][at], ({ admits }) => admits[name]]),
  },
  engines: { title: "Engines used per day", series: [["engines", 2, (row) => row.active_engines ?? 0]] },
};

export default function Usage() {
  const who = useStore(session);
  const ofFleet = who?.kind === "admin" && who.product === undefined;
  const [range, setRange] = useState(30);
  const [group, setGroup] = useState("day");
  const read = (signal) => readPages(ofFleet ? "/fleet/usage" : "/usage", range, group, signal);
  const { value, error, again } = useLoaded(read, [ofFleet, range, group]);
  const other = ofFleet ? "product" : "engine";
  return html`<div>
    <div class="title"><h1>Usage${ofFleet ? " of all products" : ""}</h1></div>
    <div class="tools">
      <label class="inline">Of the last
        <select value=${range} onChange=${(event) => setRange(Number(event.target.value))}>
          ${RANGES.map(([days, title]) => html`<option key=${days} value=${days}>${title}</option>`)}
        </select></label>
      <label class="inline">By
        <select value=${group} onChange=${(event) => setGroup(event.target.value)}>
          <option value="day">day</option><option value=${other}>${other}</option>
        </select></label>
      <button type="button" onClick=${again}>Read again</button>
    </div>
    ${error !== undefined && html`<${ErrorNotice} error=${error} again=${again} />`}
    ${value === undefined ? error === undefined && html`<${Loading} what="the usage" />` : html`<${Read} value=${value} range=${range} />`}
  </div>`;
}

async function readPages(address, range, group, signal) {
  const query = { from: dayOf(Date.now() - (range - 1) * DAY), group_by: group, limit: PAGE };
  const first = await get(address, { query, signal });
  let { rows, next } = first;
  // As many as a table can be read of; what is left out is said.
  for (let page = 1; next !== null && page < 4; page += 1) {
    const more = await get(address, { query: { ...query, after: next }, signal });
    rows = [...rows, ...more.rows];
    next = more.next;
  }
  return { ...first, rows, isCut: next !== null, group };
}

function Read({ value: { rows, total, total_admits: admits, group, from, to: last, isCut } }) {
  const [plot, setPlot] = useState("tokens");
  return html`<div class="tiles">
      <${Tile} value=${count(total.turns)} name="turns" />
      <${Tile} value=${count(total.input_tokens)} name="tokens in" />
      <${Tile} value=${count(total.output_tokens)} name="tokens out" />
      <${Tile} value=${cost(total.cost_usd)} name="cost" />
      <${Tile} value=${count(admits.admitted)} name="admitted" />
      <${Tile} value=${count(admits.denied + admits.refused + admits.failed)} name="not admitted" />
    </div>
    ${total.unpriced_calls > 0 && html`<p class="notice">The cost lacks ${count(total.unpriced_calls)} of ${count(total.calls)} model calls, whose price is not known. The catalog's <code>gateway.json</code> can name it.</p>`}
    ${group === "day" &&
    html`<section class="card" aria-label="Plot">
      <label class="inline plot-choice">Show <select value=${plot} onChange=${(event) => setPlot(event.target.value)}>
        ${Object.keys(PLOTS).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
      <${Days} rows=${rows} from=${from} last=${last} ...${PLOTS[plot]} /></section>`}
    <section class="card spaced" aria-label="Rows">
      ${rows.length === 0
        ? html`<p class="quiet">Nothing was used in these days. <a href="#/engines">Talk to an engine</a>, or choose more days.</p>`
        : html`<${Table} rows=${group === "day" ? rows.toReversed() : rows} group=${group} />`}
      <p class="quiet small caption">Days are in UTC. What a running engine has used is counted after its next health check.${isCut ? ` Only the first ${count(rows.length)} rows are shown; roundhouse usage has all.` : ""}</p>
    </section>`;
}

function Tile({ value, name }) {
  return html`<div class="tile"><strong>${value}</strong><span>${name}</span></div>`;
}

/** Days without a row have used nothing. */
function Days({ rows, from, last, title, unit, series }) {
  const begin = Date.parse(from);
  const length = Math.round((Date.parse(last) - begin) / DAY) + 1;
  const known = new Map(rows.map((row) => [row.day, row]));
  const valuesOf = (read) =>
    Array.from({ length }, (_, at) => {
      const row = known.get(dayOf(begin + at * DAY));
      return row === undefined ? 0 : read(row);
    });
  const drawn = series.map(([name, colour, read]) => ({ name, colour, values: valuesOf(read) }));
  return html`<${Plot} title=${title} kind="bars" from=${begin} step=${DAY} unit=${unit} label=${dayName} series=${drawn}
    empty="Nothing in these days" />`;
}

const DAY_NAME = new Intl.DateTimeFormat("en", { month: "short", day: "numeric", timeZone: "UTC" });

function dayName(ms) {
  return DAY_NAME.format(ms);
}

function Table({ rows, group }) {
  const hasAdmits = group !== "engine";
  const hasEngines = group === "day";
  const number = (text) => html`<td class="number">${text}</td>`;
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Usage"><table class="audit">
    <thead><tr><th scope="col">${{ day: "Day", engine: "User", product: "Product" }[group]}</th>
      ${hasEngines && html`<th scope="col" class="number">Engines</th>`}
      ${hasAdmits && OUTCOMES.map((name) => html`<th scope="col" class="number" key=${name}>${name[0].toUpperCase() + name.slice(1)}</th>`)}
      ${["Turns", "Tokens in", "Tokens out", "Tools", "Cost"].map((name) => html`<th scope="col" class="number" key=${name}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map(
      (row) => html`<tr key=${row.day ?? row.engine_id ?? row.product_id ?? ""}>
        <th scope="row" class=${group === "day" ? "nowrap" : "wrap"}><${Name} row=${row} /></th>
        ${hasEngines && number(count(row.active_engines ?? 0))}
        ${hasAdmits && OUTCOMES.map((name) => html`<td class="number" key=${name}>${count(row.admits[name])}</td>`)}
        ${number(count(row.usage.turns))}${number(count(row.usage.input_tokens))}${number(count(row.usage.output_tokens))}
        ${number(count(row.usage.tool_calls))}${number(cost(row.usage.cost_usd))}
      </tr>`,
    )}</tbody></table></div>`;
}

function Name({ row }) {
  if (row.day !== undefined) return row.day;
  if (row.product_id !== undefined) return html`<bdi>${plain(row.display_name)}</bdi> <span class="quiet">${row.slug}</span>`;
  if (row.user_id === null) return html`<span class="quiet">engines that were deleted</span>`;
  return html`<a href=${to("engines", row.user_id)}><bdi>${plain(row.user_id)}</bdi></a>`;
}
