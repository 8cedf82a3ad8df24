/** The operator's view: all products, the deployment's totals, and versions in use. */

import { html, useState } from "../lib/html.js";
import { change, get } from "../lib/api.js";
import { count, plain } from "../lib/format.js";
import { useLoaded } from "../lib/load.js";
import { go } from "../lib/router.js";
import { chooseProduct } from "../lib/session.js";
import { ActionDialog } from "../parts/dialog.js";
import { Empty, ErrorNotice, Loading } from "../parts/notice.js";
import { Health } from "../parts/state.js";
import { Time } from "../parts/time.js";

const PAGE = 1_000;

export default function Products() {
  const { value, error, again } = useLoaded(read, []);
  const [search, setSearch] = useState("");
  const [registering, setRegistering] = useState(false);
  const [key, setKey] = useState();
  if (value === undefined) {
    return error === undefined ? html`<${Loading} what="the products" />` : html`<${ErrorNotice} error=${error} again=${again} />`;
  }
  const { status, products, versions } = value;
  const text = search.trim().toLowerCase();
  const shown = products.filter(({ slug, display_name: name }) => slug.includes(text) || name.toLowerCase().includes(text));
  return html`<div>
    <div class="title"><h1>Products</h1><${Health} health=${status.health} />
      <button type="button" class="primary" onClick=${() => setRegistering(true)}>Register a product</button></div>
    ${error !== undefined && html`<${ErrorNotice} error=${error} again=${again} />`}
    ${key !== undefined && html`<${NewKey} ...${key} close=${() => setKey(undefined)} />`}
    ${status.maintenance !== null && html`<p class="notice">Maintenance since <${Time} at=${status.maintenance.since} />: ${status.maintenance.message}</p>`}
    ${status.drained_since !== null && html`<p class="notice">The deployment is drained since <${Time} at=${status.drained_since} />.</p>`}
    <${Totals} status=${status} products=${products.length} />
    <div class="tools"><input type="search" aria-label="Search products" placeholder="Search products" value=${search}
      onInput=${(event) => setSearch(event.target.value)} /></div>
    ${shown.length === 0
      ? html`<${Empty} title=${products.length === 0 ? "There are no products yet" : "No product matches"}>
          <p>A product is registered once, and gets a platform key for its backend.</p><//>`
      : html`<${List} products=${shown} status=${status} />`}
    <${Versions} versions=${versions} />
    ${registering &&
    html`<${Register} close=${() => setRegistering(false)} done=${(registered) => (setKey(registered), again())} />`}
  </div>`;
}

async function read(signal) {
  const products = [];
  for (let offset = 0, total = 1; offset < total; offset += PAGE) {
    const page = await get("/products", { query: { limit: PAGE, offset }, signal });
    total = page.total;
    products.push(...page.products);
  }
  const [status, versions] = await Promise.all([get("/fleet/status", { signal }), get("/admin/versions", { signal })]);
  return { products, status, versions };
}

function Totals({ status, products }) {
  const { total, by_status: states, capacity, changes_under_way: changes } = status;
  const tiles = [
    [count(products), "products"],
    [count(total), "engines"],
    [count(states.running ?? 0), "running"],
    [count(states.sleeping ?? 0), "asleep"],
    [count(states.failed ?? 0), "failed"],
    [count(changes), "being changed"],
    [capacity.ports === null ? "–" : `${count(capacity.leased_ports)} of ${count(capacity.ports)}`, "ports leased"],
  ];
  return html`<div class="tiles">${tiles.map(
    ([value, name]) => html`<div class="tile" key=${name}><strong>${value}</strong><span>${name}</span></div>`,
  )}</div>`;
}

function List({ products, status }) {
  const engines = new Map(status.products.map((product) => [product.product_id, product]));
  const open = (product) => {
    chooseProduct({ id: product.product_id, slug: product.slug });
    go("overview");
  };
  return html`<section class="card" aria-label="Products"><div class="scroll" tabindex="0" role="group" aria-label="Products"><table class="audit">
    <thead><tr><th scope="col">Product</th><th scope="col">State</th><th scope="col">Engines</th><th scope="col">Limit</th>
      <th scope="col">Registered</th><th scope="col"><span class="sr">Actions</span></th></tr></thead>
    <tbody>${products.map((product) => {
      const { total, max_engines: most } = engines.get(product.product_id) ?? {};
      return html`<tr key=${product.product_id}>
        <td class="wrap"><strong><bdi>${plain(product.display_name)}</bdi></strong> <span class="quiet">${product.slug}</span></td>
        <td>${product.policy.suspended ? "suspended" : product.state}</td>
        <td>${count(total)}</td>
        <td>${most === null || most === undefined ? "none" : count(most)}</td>
        <td class="nowrap"><${Time} at=${product.created_at} /></td>
        <td><button type="button" class="small" aria-label=${`Open ${product.slug}`} onClick=${() => open(product)}>Open</button></td>
      </tr>`;
    })}</tbody></table></div></section>`;
}

function Versions({ versions: { default: standard, versions } }) {
  return html`<section class="card spaced" aria-labelledby="versions"><h2 id="versions">Versions in use</h2>
    <p class="quiet small">The deployment's version is <code>${standard}</code>.</p>
    ${versions.length > 0 &&
    html`<div class="scroll" tabindex="0" role="group" aria-labelledby="versions"><table class="audit">
      <thead><tr><th scope="col">Product</th><th scope="col">Version</th><th scope="col">Engines</th><th scope="col">Pinned</th></tr></thead>
      <tbody>${versions.map(
        (entry) => html`<tr key=${`${entry.product_id} ${entry.engine_version} ${entry.pinned}`}><td>${entry.slug}</td>
          <td class="wrap">${entry.engine_version}</td><td>${count(entry.engines)}</td><td>${entry.pinned ? "yes" : "no"}</td></tr>`,
      )}</tbody></table></div>`}
  </section>`;
}

function Register({ close, done }) {
  const [slug, setSlug] = useState("");
  const [name, setName] = useState("");
  const run = async () => done(await change("POST", "/products/register", { json: { slug, display_name: name } }));
  return html`<${ActionDialog} title="Register a product" action="Register" run=${run} close=${close} ready=${slug !== "" && name !== ""}>
    <label class="field"><span>Slug</span><input autocomplete="off" spellcheck=${false} placeholder="my-product" value=${slug}
      onInput=${(event) => setSlug(event.target.value)} /></label>
    <label class="field"><span>Name</span><input autocomplete="off" value=${name} onInput=${(event) => setName(event.target.value)} /></label>
  <//>`;
}

function NewKey({ slug, platform_api_key: key, close }) {
  return html`<section class="notice" aria-label="The new platform key">
    <p><strong>The platform key of ${slug}.</strong> It is shown only now: only its hash is kept.</p>
    <div class="secret"><code>${key}</code><button type="button" onClick=${close}>Hide</button></div>
  </section>`;
}
