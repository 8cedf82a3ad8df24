/**
 * A table of any length of which only the rows in view are elements. Rows have one height, so where each is follows
 * from its number.
 */

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";

/** Rows above and below those in view that are there already when one scrolls. */
const MARGIN = 12;

/**
 * @param {{label: string, columns: {name: string, title: unknown, cell: (row: any) => unknown}[], rows: any[],
 *   keyOf: (row: any) => string, rowHeight: number, kind: string}} props
 */
export function VirtualTable({ label, columns, rows, keyOf, rowHeight, kind }) {
  const viewport = useRef();
  const [view, setView] = useState({ first: 0, last: 40 });
  const measure = () => {
    // The observer may still be called for a table that is gone.
    if (viewport.current === null) return;
    const { scrollTop, clientHeight } = viewport.current;
    const first = Math.max(0, Math.floor(scrollTop / rowHeight) - MARGIN);
    const last = Math.ceil((scrollTop + clientHeight) / rowHeight) + MARGIN;
    setView((old) => (old.first === first && old.last === last ? old : { first, last }));
  };
  useLayoutEffect(measure, [rows.length, rowHeight]);
  useEffect(() => {
    const observer = new ResizeObserver(measure);
    observer.observe(viewport.current);
    return () => observer.disconnect();
  }, []);
  const move = (event) => moveFocus(event, viewport.current, rowHeight);
  const shown = rows.slice(view.first, view.last);
  return html`<div class=${`table table-${kind}`} role="table" aria-label=${label} aria-rowcount=${rows.length + 1}>
    <div role="rowgroup">
      <div class="tr th" role="row" aria-rowindex="1">
        ${columns.map(({ name, title }) => html`<div class=${`td td-${name}`} role="columnheader" key=${name}>${title}</div>`)}
      </div>
    </div>
    <div class="tbody" role="rowgroup" tabindex="0" aria-label=${label} ref=${viewport} onScroll=${measure} onKeyDown=${move}>
      <div class="spacer" role="presentation" style=${{ height: `${rows.length * rowHeight}px` }}>
        ${shown.map(
          (row, index) => html`<${Row} key=${keyOf(row)} row=${row} columns=${columns} number=${view.first + index} rowHeight=${rowHeight} />`,
        )}
      </div>
    </div>
  </div>`;
}

function Row({ row, columns, number, rowHeight }) {
  // The same elements again, as long as nothing of the row has changed: scrolling then costs the new rows only.
  return useMemo(() => draw(row, columns, number, rowHeight), [row, columns, number, rowHeight]);
}

function draw(row, columns, number, rowHeight) {
  return html`<div class="tr" role="row" aria-rowindex=${number + 2} style=${{ transform: `translateY(${number * rowHeight}px)` }}>
    ${columns.map(({ name, cell }) => html`<div class=${`td td-${name}`} role="cell" key=${name}>${cell(row)}</div>`)}
  </div>`;
}

/** Up and Down move from a row's first link to the next row's; the table scrolls along. */
function moveFocus(event, viewport, rowHeight) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const row = event.target.closest?.("[role=row]");
  if (step === undefined || row === null || row === undefined) return;
  event.preventDefault();
  const number = Number(row.getAttribute("aria-rowindex")) + step;
  const next = viewport.querySelector(`[aria-rowindex="${number}"] a`);
  if (next === null) return;
  const top = (number - 2) * rowHeight;
  if (top < viewport.scrollTop) viewport.scrollTop = top;
  else if (top + rowHeight > viewport.scrollTop + viewport.clientHeight) {
    viewport.scrollTop = top + rowHeight - viewport.clientHeight;
  }
  next.focus({ preventScroll: true });
}
