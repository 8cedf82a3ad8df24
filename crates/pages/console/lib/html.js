/** The templates of all views: elements of preact, written as they would be in HTML, and the hooks that views use. */

import { h } from "../vendor/preact.mjs";
import htm from "../vendor/htm.mjs";

export { Fragment, render } from "../vendor/preact.mjs";
export {
  useCallback,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "../vendor/preact-hooks.mjs";

export const html = htm.bind(h);
