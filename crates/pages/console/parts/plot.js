/**
 * Plots over time, as SVG: stacked bars, or points of several series. They take their colours from the style sheet, and
 * say what they show in words, too. A library would bring a canvas and 40 KiB for what is a hundred lines here.
 */

import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { clock, count } from "../lib/format.js";

const HEIGHT = 170;
const LEFT = 50;
const BOTTOM = 22;
const TOP = 8;

/**
 * @param {{title: string, unit?: (value: number) => string, label?: (ms: number) => string, kind: "bars" | "points", from: number, step: number,
 *   series: {name: string, colour: number, values: (number | undefined)[]}[], empty: string}} props
 */
export function Plot({ title, unit = count, label = clock, kind, from, step, series, empty }) {
  const [width, drawing] = useWidth();
  const length = Math.max(...series.map(({ values }) => values.length), 1);
  const totals = Array.from({ length }, (_, at) => height(series, at, kind));
  const top = niceAbove(Math.max(...totals, 0));
  const inner = { width: width - LEFT, height: HEIGHT - BOTTOM - TOP };
  const x = (at) => LEFT + (at / length) * inner.width;
  const y = (value) => TOP + inner.height * (1 - value / top);
  const hasAny = totals.some((total) => total > 0);
  const draw = kind === "bars" ? bars : points;
  return html`<figure class="plot">
    <figcaption><h2>${title}</h2>
      <ul class="legend">${series.map(({ name, colour }) => html`<li key=${name}><span class=${`swatch c${colour}`}></span>${name}</li>`)}</ul>
    </figcaption>
    <svg ref=${drawing} viewBox=${`0 0 ${width} ${HEIGHT}`} role="img" aria-label=${inWords(title, series, unit, kind, empty)}>
      ${[0, top / 2, top].map((value) => {
        // There is no half of a change.
        if (unit === count && !Number.isInteger(value)) return null;
        return html`<g key=${value}><line class="grid" x1=${LEFT} x2=${width} y1=${y(value)} y2=${y(value)} />
          <text class="tick" x=${LEFT - 6} y=${y(value) + 4} text-anchor="end">${unit(value)}</text></g>`;
      })}
      ${[0, 0.25, 0.5, 0.75].map(
        (share) => html`<text key=${share} class="tick" x=${x(length * share)} y=${HEIGHT - 6}>${label(from + Math.floor(length * share) * step)}</text>`,
      )}
      ${hasAny
        ? draw({ series, length, x, y, top, from, step, unit, label })
        : html`<text class="tick" x=${LEFT + inner.width / 2} y=${TOP + inner.height / 2} text-anchor="middle">${empty}</text>`}
    </svg>
  </figure>`;
}

/** The width of the drawing in pixels: its text has one size, whatever the screen. */
function useWidth() {
  const drawing = useRef();
  const [width, setWidth] = useState(600);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([{ contentRect }]) => setWidth(Math.max(200, Math.round(contentRect.width))));
    observer.observe(drawing.current);
    return () => observer.disconnect();
  }, []);
  return [width, drawing];
}

function height(series, at, kind) {
  const values = series.map(({ values: all }) => all[at] ?? 0);
  return kind === "bars" ? values.reduce((sum, value) => sum + value, 0) : Math.max(...values);
}

function bars({ series, length, x, y, from, step, unit, label }) {
  const width = Math.max(1, x(1) - x(0) - (length > 120 ? 0 : 1.5));
  return Array.from({ length }, (_, at) => {
    let below = 0;
    return series.map(({ name, colour, values }) => {
      const value = values[at] ?? 0;
      if (value === 0) return null;
      const bottom = below;
      below += value;
      return html`<rect key=${`${at}-${name}`} class=${`c${colour}`} x=${x(at)} width=${width} y=${y(below)}
        height=${y(bottom) - y(below)}><title>${label(from + at * step)}: ${unit(value)} ${name}</title></rect>`;
    });
  });
}

function points({ series, length, x, y, from, step, unit, label }) {
  const middle = (x(1) - x(0)) / 2;
  // The first series is on top of the others.
  return series.toReversed().map(({ name, colour, values }, order) =>
    Array.from({ length }, (_, at) => {
      const value = values[at];
      if (value === undefined) return null;
      return html`<circle key=${`${at}-${name}`} class=${`c${colour}`} cx=${x(at) + middle} cy=${y(value)} r=${6 - 2 * order}>
        <title>${label(from + at * step)}: ${name} ${unit(value)}</title></circle>`;
    }),
  );
}

function inWords(title, series, unit, kind, empty) {
  const parts = series.map(({ name, values }) => {
    const known = values.filter((value) => value !== undefined && value > 0);
    if (known.length === 0) return undefined;
    return kind === "bars"
      ? `${name} ${unit(known.reduce((sum, value) => sum + value, 0))}`
      : `${name} up to ${unit(Math.max(...known))}`;
  });
  const text = parts.filter(Boolean).join(", ");
  return `${title}: ${text === "" ? empty : text}`;
}

/** The next of 1, 2, 5, 10, 20, … */
function niceAbove(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= value) ?? value;
}
