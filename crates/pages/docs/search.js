/** Search through all pages, in the browser: nothing that is typed is sent anywhere. */

const SHOWN = 20;
const EXCERPT = 160;

/**
 * Letters without case and marks. The result has the length of the text, so that a place in the one is that place in
 * the other.
 */
export function fold(text) {
  const folded = text.replace(/[^\x00-\x7f]/gu, (letter) => {
    const plain = letter.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
    return plain.length === letter.length ? plain : letter;
  });
  const lower = folded.toLowerCase();
  return lower.length === folded.length ? lower : folded;
}

/** The words of a query. */
export function termsOf(query) {
  return fold(query.normalize("NFC")).split(/[\s,;]+/u).filter((term) => term !== "");
}

/** @returns {{page: Array, id: string, title: string, text: string, terms: string[]}[]} the best sections first */
export function find(index, query) {
  const terms = termsOf(query);
  if (terms.length === 0) return [];
  const found = [];
  for (const section of index.sections) {
    const score = scoreOf(index, section, terms);
    if (score > 0) found.push({ section, score });
  }
  found.sort((a, b) => b.score - a.score);
  return found.slice(0, SHOWN).map(({ section }) => {
    const [page, id, title, text] = section;
    return { page: index.pages[page], id, title, text, terms };
  });
}

function scoreOf(index, section, terms) {
  const [page, , title, text] = section;
  section.folded ??= { title: fold(title), text: fold(text), page: fold(index.pages[page][1]) };
  const { folded } = section;
  let score = 0;
  for (const term of terms) {
    const inTitle = quality(folded.title, term);
    const inPage = quality(folded.page, term);
    const inText = quality(folded.text, term);
    if (inTitle + inPage + inText === 0) return 0;
    score += 10 * inTitle + 4 * inPage + inText;
  }
  // Of equals, the section that is about little else.
  return score + 1 / (1 + folded.title.length / 20 + folded.text.length / 500);
}

/** 3 for a whole word, 2 for its beginning, 1 for a part of it. */
function quality(text, term) {
  let best = 0;
  for (let at = text.indexOf(term); at >= 0; at = text.indexOf(term, at + 1)) {
    const begins = at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1]);
    const end = at + term.length;
    const ends = end >= text.length || !/[\p{L}\p{N}]/u.test(text[end]);
    if (begins && ends) return 3;
    best = Math.max(best, begins ? 2 : 1);
  }
  return best;
}

/** The part of a text around the first term, as pieces of which some are marked. */
export function excerptOf(text, terms) {
  const folded = fold(text);
  const places = terms.map((term) => folded.indexOf(term)).filter((at) => at >= 0);
  const first = places.length === 0 ? 0 : Math.min(...places);
  let start = Math.max(0, first - EXCERPT / 3);
  if (start > 0) start = text.indexOf(" ", start) + 1 || start;
  start = Math.min(start, first);
  const end = Math.min(text.length, start + EXCERPT);
  const pieces = [{ text: start > 0 ? "… " : "", marked: false }];
  for (let at = start; at < end; ) {
    const next = terms
      .map((term) => ({ at: folded.indexOf(term, at), length: term.length }))
      .filter((hit) => hit.at >= 0 && hit.at < end)
      .sort((a, b) => a.at - b.at || b.length - a.length)[0];
    const until = next?.at ?? end;
    pieces.push({ text: text.slice(at, until), marked: false });
    if (next !== undefined) pieces.push({ text: text.slice(until, until + next.length), marked: true });
    at = next === undefined ? end : until + next.length;
  }
  if (end < text.length) pieces.push({ text: " …", marked: false });
  return pieces.filter((piece) => piece.text !== "");
}

/** Puts the search into its place. */
export function startSearch(place) {
  const { below, home } = place.dataset;
  const input = document.createElement("input");
  Object.assign(input, { type: "search", placeholder: "Search  ( / )", autocomplete: "off", spellcheck: false });
  input.setAttribute("aria-label", "Search the documentation");
  const results = document.createElement("div");
  results.className = "results";
  results.hidden = true;
  place.append(input, results);
  place.hidden = false;

  let index;
  const load = () => {
    index ??= fetch(new URL("search.json", import.meta.url)).then((response) => {
      if (!response.ok) throw new Error(String(response.status));
      return response.json();
    });
    index.catch(() => (index = undefined));
    return index;
  };

  const show = async () => {
    const query = input.value;
    if (query.trim() === "") {
      results.hidden = true;
      return;
    }
    const count = document.createElement("p");
    count.setAttribute("role", "status");
    const list = document.createElement("ul");
    try {
      const found = find(await load(), query);
      if (input.value !== query) return;
      const many = found.length === SHOWN ? `the best ${SHOWN} places` : found.length === 1 ? "1 place" : `${found.length} places`;
      count.textContent = found.length === 0 ? "Nothing is found." : many;
      list.append(...found.map((hit) => entry(hit, below, home)));
    } catch {
      count.textContent = "The index cannot be loaded. Reload the page.";
    }
    results.replaceChildren(count, list);
    results.hidden = false;
  };
  input.addEventListener("focus", () => load().catch(() => undefined));
  input.addEventListener("input", show);

  const close = () => (results.hidden = true);
  place.addEventListener("keydown", (event) => {
    const links = [input, ...results.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    if (event.key === "Escape") {
      close();
      input.focus();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      links[Math.max(0, Math.min(links.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)))].focus();
    } else if (event.key === "Enter" && document.activeElement === input) {
      event.preventDefault();
      links[1]?.click();
    }
  });
  place.addEventListener("focusout", (event) => place.contains(event.relatedTarget) || close());
  // A click within keeps the focus within.
  results.addEventListener("mousedown", (event) => event.target.closest("a") ?? event.preventDefault());
  results.addEventListener("click", (event) => event.target.closest("a") && close());
  input.addEventListener("focus", () => input.value.trim() !== "" && show());
  addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    input.focus();
  });
}

function entry({ page: [slug, pageTitle, part], id, title, text, terms }, below, home) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  link.href = `${slug === "" ? home : below + slug}#${id}`;
  const name = document.createElement("strong");
  name.textContent = title;
  const where = document.createElement("small");
  where.textContent = title === pageTitle ? part : `${part} › ${pageTitle}`;
  const excerpt = document.createElement("small");
  for (const piece of excerptOf(text, terms)) {
    const element = piece.marked ? document.createElement("mark") : document.createTextNode(piece.text);
    if (piece.marked) element.textContent = piece.text;
    excerpt.append(element);
  }
  link.append(name, where, excerpt);
  item.append(link);
  return item;
}
