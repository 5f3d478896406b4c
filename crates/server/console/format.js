// Numbers, times and lengths of time, as people read them.

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** A count with all its digits. @param {number} value */
export const count = (value) => whole.format(value);

/** A count in few characters. @param {number} value */
export const short = (value) => (value < 10_000 ? whole.format(value) : compact.format(value));

/** A length of time. @param {number | null | undefined} nanos */
export function nanos(nanos) {
  if (nanos === null || nanos === undefined || nanos === 0) return "–";
  if (nanos >= 4_294_967_295) return "> 4 s";
  if (nanos < 1_000_000) return `${trim(nanos / 1_000)} µs`;
  if (nanos < 1_000_000_000) return `${trim(nanos / 1_000_000)} ms`;
  return `${trim(nanos / 1_000_000_000)} s`;
}

/** A length of time. @param {number | null | undefined} ms */
export function span(ms) {
  if (ms === null || ms === undefined) return "never";
  if (ms < 1_000) return `${ms} ms`;
  const seconds = ms / 1_000;
  if (seconds < 90) return `${trim(seconds)} s`;
  if (seconds < 5_400) return `${trim(seconds / 60)} min`;
  if (seconds < 129_600) return `${trim(seconds / 3_600)} h`;
  return `${trim(seconds / 86_400)} days`;
}

/** @param {number} value */
function trim(value) {
  return value >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
}

/** An instant in the time zone of the reader. @param {number} ms */
export function time(ms) {
  const date = new Date(ms);
  const pad = (/** @type {number} */ value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/** A time of day in UTC, with the day if it is not today's. @param {number} ms */
export function clock(ms) {
  const [day, hours] = new Date(ms).toISOString().split("T");
  return day === new Date().toISOString().slice(0, 10) ? hours.slice(0, 8) : `${day} ${hours.slice(0, 8)}`;
}

/** A share, with three digits. @param {number} part @param {number} all */
export const percent = (part, all) => `${trim(all === 0 ? 0 : (part * 100) / all)} %`;

/** How long ago an instant was. @param {number} ms */
export function ago(ms) {
  const seconds = Math.max(0, Math.floor((Date.now() - ms) / 1_000));
  if (seconds < 2) return "now";
  if (seconds < 90) return `${seconds} s ago`;
  if (seconds < 5_400) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 129_600) return `${Math.floor(seconds / 3_600)} h ago`;
  return `${Math.floor(seconds / 86_400)} days ago`;
}

/** `1 rule`, `2 rules`. @param {number} number @param {string} noun */
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
