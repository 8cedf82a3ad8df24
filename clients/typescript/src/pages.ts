/** Lists that come in pages. */

/** One page, and how to get the next one. */
export interface Page<T> {
  readonly items: readonly T[];
  readonly next?: (() => Promise<Page<T>>) | undefined;
}

/** A list that is fetched page by page: iterate over its entries, or over `pages()`. Nothing is fetched before. */
export class Pages<T> implements AsyncIterable<T> {
  readonly #first: () => Promise<Page<T>>;

  constructor(first: () => Promise<Page<T>>) {
    this.#first = first;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for await (const page of this.pages()) yield* page;
  }

  /** The pages as the service cuts them. */
  async *pages(): AsyncGenerator<readonly T[], void, undefined> {
    for (let fetch: (() => Promise<Page<T>>) | undefined = this.#first; fetch !== undefined;) {
      const page: Page<T> = await fetch();
      if (page.items.length > 0) yield page.items;
      fetch = page.next;
    }
  }

  /** The first `limit` entries, by default all, in an array. */
  async toArray(limit = Number.POSITIVE_INFINITY): Promise<T[]> {
    const found: T[] = [];
    for await (const page of this.pages()) {
      found.push(...page.slice(0, limit - found.length));
      if (found.length >= limit) break;
    }
    return found;
  }
}

/** Pages that are named by how many entries come before them. They end with the first that is not full. */
export function byOffset<T>(
  size: number,
  fetch: (limit: number, offset: number) => Promise<readonly T[]>,
): Pages<T> {
  const from = async (offset: number): Promise<Page<T>> => {
    const items = await fetch(size, offset);
    return { items, next: items.length < size ? undefined : () => from(offset + items.length) };
  };
  return new Pages(() => from(0));
}

/** Pages each of which names the next one. */
export function byCursor<T, C>(
  fetch: (after: C | undefined) => Promise<{ items: readonly T[]; next: C | null | undefined }>,
): Pages<T> {
  const from = async (after: C | undefined): Promise<Page<T>> => {
    const { items, next } = await fetch(after);
    return { items, next: next == null ? undefined : () => from(next) };
  };
  return new Pages(() => from(undefined));
}
