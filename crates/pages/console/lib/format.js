/** Numbers, durations and times as people read them. */

const NUMBER = new Intl.NumberFormat("en");
const EXACT = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "long" });
const CLOCK = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hour12: false });

/** 12,345 */
export function count(value) {
  return typeof value === "number" ? NUMBER.format(value) : "–";
}

/** 1 engine, 12 engines */
export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** 250 ms, 1.2 s, 3 min 20 s, 2 h 5 min, 3 d 4 h */
export function duration(ms) {
  if (typeof ms !== "number" || !Number.isFinite(ms)) return "–";
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1_000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1_000);
  if (seconds < 60) return `${seconds} s`;
  const [minutes, hours, days] = [Math.floor(seconds / 60), Math.floor(seconds / 3_600), Math.floor(seconds / 86_400)];
  if (hours < 1) return two(minutes, "min", seconds % 60, "s");
  if (days < 1) return two(hours, "h", minutes % 60, "min");
  return two(days, "d", hours % 24, "h");
}

function two(large, largeUnit, small, smallUnit) {
  return small === 0 ? `${large} ${largeUnit}` : `${large} ${largeUnit} ${small} ${smallUnit}`;
}

/** just now, 12 s ago, in 4 min */
export function relative(ms, now = Date.now()) {
  const distance = Math.abs(now - ms);
  if (distance < 5_000) return "just now";
  const text = coarse(distance);
  return ms > now ? `in ${text}` : `${text} ago`;
}

function coarse(ms) {
  const seconds = ms / 1_000;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3_600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.round(seconds / 3_600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

/** Nov 29, 2026, 12:00:00 UTC */
export function exact(ms) {
  return EXACT.format(ms);
}

/** 14:05 */
export function clock(ms) {
  return CLOCK.format(ms);
}

/** 812 bytes, 1.5 KiB, 3.0 MiB */
export function bytes(value) {
  if (typeof value !== "number") return "–";
  if (value < 1_024) return counted(value, "byte");
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let unit = -1;
  let amount = value;
  while (amount >= 1_024 && unit < units.length - 1) {
    amount /= 1_024;
    unit += 1;
  }
  return `${amount.toFixed(1)} ${units[unit]}`;
}

/** Text of others in one line, in which no character hides, reverses or breaks anything. */
export function plain(text) {
  return String(text).replace(
    /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (character) => `\\u{${character.codePointAt(0).toString(16)}}`,
  );
}
