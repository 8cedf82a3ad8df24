/** A plot of admits per minute, by outcome. */

import { html } from "../lib/html.js";
import { OUTCOMES, admits } from "../lib/admits.js";
import { clock, count } from "../lib/format.js";
import { useStore } from "../lib/store.js";
import { ErrorNotice } from "./notice.js";
import { Plot } from "./plot.js";

const MINUTE = 60_000;
const COLOURS = { admitted: 1, denied: 5, refused: 6, failed: 4 };

/** @param {{from: number}} props The beginning of the first of 60 minutes. */
export function Admits({ from }) {
  const { since, minutes, today, error } = useStore(admits().state);
  const series = OUTCOMES.map((name) => ({
    name,
    colour: COLOURS[name],
    values: Array.from({ length: 60 }, (_, at) => minutes.get(from + at * MINUTE)?.[name] ?? 0),
  }));
  return html`<section class="card spaced" aria-label="Admits">
    <${Plot} title="Admits per minute" kind="bars" from=${from} step=${MINUTE} series=${series} empty="Nobody has been admitted since then" />
    ${error !== undefined && html`<${ErrorNotice} error=${error} />`}
    <p class="quiet small caption">${since !== undefined && `Counted since this page was opened at ${clock(since)}; what was before is kept by day only. `}${today !== undefined && `Today: ${OUTCOMES.map((name) => `${count(today[name])} ${name}`).join(", ")}.`}
      ${" "}<a href="#/usage">All days</a></p>
  </section>`;
}
