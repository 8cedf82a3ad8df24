/** Where the API is: beside the console, also below another path of a reverse proxy. */

/** The address that paths of the API are resolved against; this file is at `console/<hash>/lib/base.js`. */
export const BASE = new URL("../../../", import.meta.url);

/** The address of a path of the API, which begins with a slash. */
export function address(path, query) {
  const url = new URL(path.slice(1), BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, String(value));
  }
  return url;
}
