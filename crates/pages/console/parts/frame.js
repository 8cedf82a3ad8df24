/** What is around each view: the name, the ways to other views, who is signed in. */

import { html, useEffect, useRef } from "../lib/html.js";
import { chooseProduct } from "../lib/session.js";
import { route } from "../lib/router.js";
import { useStore } from "../lib/store.js";

const OF_PRODUCT = [
  ["overview", "Overview"],
  ["engines", "Engines"],
  ["usage", "Usage"],
  ["audit", "Audit"],
  ["policy", "Policy"],
];

export function Frame({ session, signOut, children }) {
  const { parts } = useStore(route);
  const main = useRef();
  const isFirst = useRef(true);
  const hasProduct = session.kind === "platform" || session.product !== undefined;
  const place = parts[0] ?? (hasProduct ? "overview" : "products");
  const links = [...(session.kind === "admin" ? [["products", "Products"]] : []), ...(hasProduct ? OF_PRODUCT : [["usage", "Usage"]])];
  const at = parts.slice(0, 3).join("/");
  useEffect(() => {
    // Whoever goes to another view by keyboard, or cannot see, goes on at its beginning.
    if (!isFirst.current) main.current.focus();
    isFirst.current = false;
  }, [at]);
  const nav = useRef();
  useEffect(() => {
    // On a phone, not all of them fit.
    nav.current.querySelector("[aria-current]")?.scrollIntoView({ inline: "nearest", block: "nearest" });
  }, [place]);
  return html`<a class="skip" href="#main" onClick=${(event) => skip(event, main.current)}>Skip to the content</a>
    <header class="frame">
      <span class="brand"><${Mark} />Roundhouse</span>
      <nav aria-label="Console" ref=${nav}>
        ${links.map(
          ([name, title]) =>
            html`<a key=${name} href=${`#/${name}`} aria-current=${name === place ? "page" : undefined}>${title}</a>`,
        )}
      </nav>
      <div class="who">
        ${session.kind === "admin" &&
        session.product !== undefined &&
        html`<span class="chip">${session.product.slug}
          <button type="button" class="plain" aria-label="Leave the product" title="Leave the product" onClick=${leave}>×</button>
        </span>`}
        <span class="quiet small who-kind">${session.kind === "admin" ? "Operator" : "Product"}</span>
        <button type="button" onClick=${signOut}>Sign out</button>
      </div>
    </header>
    <main id="main" tabindex="-1" ref=${main}>${children}</main>`;
}

function leave() {
  chooseProduct(undefined);
  location.hash = "#/products";
}

function skip(event, main) {
  // The part of the address behind # says where one is, so it must stay.
  event.preventDefault();
  main.focus();
}

export function Mark() {
  return html`<svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
    <rect width="32" height="32" rx="7" />
    <g><path d="M5.5 22a10.5 10.5 0 0 1 21 0" /><path d="M16 22v-4M16 22l-5-3.6M16 22l5-3.6" /></g>
    <circle cx="16" cy="22" r="2.4" />
  </svg>`;
}
