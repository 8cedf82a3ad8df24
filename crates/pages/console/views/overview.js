/** The fleet at a glance: states, health, what has changed in the last hour and how long it took. */

import { html, useEffect, useMemo, useState } from "../lib/html.js";
import { get } from "../lib/api.js";
import { count, counted, duration } from "../lib/format.js";
import { fleet } from "../lib/fleet.js";
import { useLoaded } from "../lib/load.js";
import { STATES } from "../lib/states.js";
import { useStore } from "../lib/store.js";
import { Admits } from "../parts/admits.js";
import { ErrorNotice, Loading } from "../parts/notice.js";
import { Plot } from "../parts/plot.js";
import { Health } from "../parts/state.js";
import { countStates } from "./engines.js";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
/** Of an hour with more rows than these, the older part is not shown. */
const MAX_PAGES = 5;
const PAGE = 1_000;
const BOOTS = new Set(["provision", "start", "wake"]);
/** What the bars show: a name, a colour, and the audit log's events. */
const CHANGES = [
  ["provisioned", 1, ["provision"]],
  ["woken or started", 2, ["wake", "start"]],
  ["asleep or stopped", 3, ["sleep", "stop"]],
  ["crashed", 4, ["crash"]],
  ["restarted", 5, ["restart"]],
  ["destroyed", 6, ["destroy"]],
];

export default function Overview() {
  const { state, rows: liveRows } = fleet();
  const { phase, engines, error } = useStore(state);
  const live = useStore(liveRows);
  const before = useLoaded(readLastHour, []);
  const metrics = useLoaded((signal) => get("/metrics", { signal }), [live.at(-1)?.id]);
  const minute = useMinute();
  const rows = useMemo(() => merge(before.value?.rows ?? [], live, minute), [before.value, live, minute]);
  if (phase === "failed") return html`<${ErrorNotice} error=${error} again=${() => location.reload()} />`;
  if (phase === "loading" && engines.length === 0) return html`<${Loading} what="the fleet" />`;
  const counts = countStates(engines);
  const from = minute - HOUR + MINUTE;
  return html`<div>
    <div class="title"><h1>Overview</h1><${Health} health=${healthOf(counts, engines.length)} />
      <span class=${`live live-${phase}`} role="status">${phase}</span></div>
    <div class="tiles">
      <${Tile} value=${count(engines.length)} name="engines" />
      <${Tile} value=${count(counts.running ?? 0)} name="running" />
      <${Tile} value=${engines.length === 0 ? "–" : `${Math.round((100 * (counts.sleeping ?? 0)) / engines.length)} %`} name="asleep" />
      <${Tile} value=${count(counts.failed ?? 0)} name="failed" bad=${counts.failed > 0} />
      <${Tile} value=${count(metrics.value?.crashes_1h)} name="crashes in the last hour" />
      <${Tile} value=${count(metrics.value?.restarts_1h)} name="restarts in the last hour" />
    </div>
    ${(before.error ?? metrics.error) !== undefined && html`<${ErrorNotice} error=${before.error ?? metrics.error} again=${before.again} />`}
    <section class="card" aria-labelledby="states"><h2 id="states">States</h2><${Shares} counts=${counts} total=${engines.length} /></section>
    <${Admits} from=${from} />
    <div class="columns spaced">
      <section class="card" aria-label="Changes"><${Plot} title="Changes per minute" kind="bars" from=${from} step=${MINUTE}
        series=${changes(rows, from)} empty="Nothing has changed in the last hour" /></section>
      <section class="card" aria-label="Boots"><${Plot} title="Time of boots and wakes" kind="points" from=${from} step=${5 * MINUTE}
        unit=${duration} series=${boots(rows, from)} empty="No engine has booted in the last hour" /></section>
    </div>
    <p class="quiet small">${lifetime(metrics.value)}${before.value?.isCut ? " The last hour has more rows than are shown." : ""}</p>
  </div>`;
}

function Tile({ value, name, bad = false }) {
  return html`<div class=${bad ? "tile bad" : "tile"}><strong>${value}</strong><span>${name}</span></div>`;
}

function Shares({ counts, total }) {
  if (total === 0) return html`<p class="quiet">There are no engines yet. <a href="#/engines">Provision one</a>.</p>`;
  const shown = STATES.filter((name) => counts[name] > 0);
  return html`<div class="shares" role="presentation">
      ${shown.map((name) => html`<div key=${name} class=${`share share-${name}`} style=${{ flexGrow: counts[name] }}></div>`)}
    </div>
    <ul class="legend">${shown.map(
      (name) => html`<li key=${name}><span class=${`swatch share-${name}`}></span>${name} ${count(counts[name])}</li>`,
    )}</ul>`;
}

function healthOf({ failed = 0 }, total) {
  if (failed === 0) return "ok";
  return failed >= total - failed ? "critical" : "degraded";
}

async function readLastHour(signal) {
  const since = Date.now() - HOUR;
  const rows = [];
  for (let page = 0, before; page < MAX_PAGES; page += 1) {
    const { rows: older } = await get("/audit", { query: { limit: PAGE, before }, signal });
    rows.push(...older.filter((row) => Date.parse(row.at) >= since));
    before = older.at(-1)?.id;
    if (older.length < PAGE || Date.parse(older.at(-1).at) < since) return { rows, isCut: false };
  }
  return { rows, isCut: true };
}

/** The rows of the last hour: those read, and those that came since. */
function merge(read, live, minute) {
  const rows = new Map();
  for (const row of [...read, ...live]) {
    if (Date.parse(row.at) >= minute - HOUR) rows.set(row.id, row);
  }
  return [...rows.values()];
}

/** The beginning of the current minute. */
function useMinute() {
  const now = () => Math.floor(Date.now() / MINUTE) * MINUTE;
  const [minute, setMinute] = useState(now);
  useEffect(() => {
    const timer = setInterval(() => setMinute(now()), 5_000);
    return () => clearInterval(timer);
  }, []);
  return minute;
}

function changes(rows, from) {
  return CHANGES.map(([name, colour, events]) => {
    const values = Array(60).fill(0);
    for (const row of rows) {
      const at = Math.floor((Date.parse(row.at) - from) / MINUTE);
      if (events.includes(row.event) && at >= 0 && at < 60) values[at] += 1;
    }
    return { name, colour, values };
  });
}

function boots(rows, from) {
  const groups = Array.from({ length: 12 }, () => []);
  for (const row of rows) {
    const at = Math.floor((Date.parse(row.at) - from) / (5 * MINUTE));
    if (BOOTS.has(row.event) && row.duration_ms !== null) groups[at]?.push(row.duration_ms);
  }
  const quantile = (q) => groups.map((times) => times.sort((a, b) => a - b)[Math.max(0, Math.ceil(q * times.length) - 1)]);
  return [
    { name: "p50: half are faster", colour: 1, values: quantile(0.5) },
    { name: "p95: 95 of 100 are faster", colour: 2, values: quantile(0.95) },
  ];
}

function lifetime(metrics) {
  if (metrics === undefined) return "";
  const average = metrics.avg_boot_ms === 0 ? "" : ` A provision took ${duration(metrics.avg_boot_ms)} on average in the last hour.`;
  return `${counted(metrics.total_provisions, "engine was", "engines were")} ever provisioned, ${count(metrics.total_destroys)} destroyed.${average}`;
}
