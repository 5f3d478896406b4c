// Live data: one event per second, and the history before the first event.

import { Problem, send } from "./api.js";

/** @typedef {{admitted: number[], refused: number[], shadow: number[]}} RuleSeries */
/** @typedef {RuleSeries & {fallback: number[], mean_ns: number[], p99_ns: number[]}} Series */

const COLUMNS = /** @type {const} */ (["admitted", "refused", "shadow", "fallback", "mean_ns", "p99_ns"]);
const SECONDS = 900;
const TENS = 360;
/** The points of a sparkline: ten minutes by ten seconds. */
export const SPARK = 60;

/** @returns {Series} */
const empty = () => ({ admitted: [], refused: [], shadow: [], fallback: [], mean_ns: [], p99_ns: [] });

/** What is known now. */
export const live = {
  /** The last event. @type {any} */
  last: null,
  /** Whether events arrive; the reason if not. @type {string} */
  lost: "",
  seconds: empty(),
  tens: empty(),
  /** Indexed by domain and id, see `ruleKey`. @type {Map<string, RuleSeries>} */
  rules: new Map(),
};

/** @param {string} domain @param {string} id */
export const ruleKey = (domain, id) => `${domain}\n${id}`;

/** @type {Set<() => void>} */
const listeners = new Set();
/** @type {any[]} */
let ten = [];

/** Calls `listener` with every event until `signal` aborts. @param {() => void} listener @param {AbortSignal} signal */
export function onEvent(listener, signal) {
  listeners.add(listener);
  signal.addEventListener("abort", () => listeners.delete(listener));
}

/** Waits until the page is visible. @returns {Promise<void>} */
function visible() {
  return new Promise((resolve) => {
    const check = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", check);
      resolve();
    };
    document.addEventListener("visibilitychange", check);
    check();
  });
}

/**
 * Reads events for as long as the page is open. A page in the background opens no stream: a browser has few connections
 * to one server, and each stream needs one.
 */
export async function follow() {
  for (let wait = 500; ; wait = Math.min(wait * 2, 8_000)) {
    await visible();
    const hidden = new AbortController();
    const { signal } = hidden;
    document.addEventListener("visibilitychange", () => hidden.abort(), { once: true, signal });
    try {
      const history = await (await send("GET", "/v1/history", { signal })).json();
      live.seconds = history.seconds;
      live.tens = history.tens;
      live.rules = new Map(history.rules.map((/** @type {any} */ rule) => [ruleKey(rule.domain, rule.id), rule]));
      ten = [];
      const last = Object.fromEntries(COLUMNS.map((column) => [column, live.seconds[column].at(-1) ?? 0]));
      live.last = { ...last, ...history.status, rules: [] };
      listeners.forEach((listener) => listener());
      const response = await send("GET", "/v1/live", { signal });
      const body = /** @type {ReadableStream<any>} */ (response.body);
      const reader = body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const events = text.split("\n\n");
        text = events.pop() || "";
        for (const event of events) {
          if (!event.startsWith("data: ")) continue;
          take(JSON.parse(event.slice(6)));
          wait = 500;
        }
      }
      lose("The server has ended the stream of live data.");
    } catch (error) {
      if (signal.aborted) {
        wait = 500;
        continue;
      }
      lose(error instanceof Problem ? error.message : "The connection to the server was lost.");
    }
    hidden.abort();
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

/** @param {string} why */
function lose(why) {
  live.lost = why;
  listeners.forEach((listener) => listener());
}

/** @param {any} event */
function take(event) {
  live.last = event;
  live.lost = "";
  for (const column of COLUMNS) push(live.seconds[column], event[column], SECONDS);
  ten.push(event);
  if (ten.length === 10) endTen();
  listeners.forEach((listener) => listener());
}

/** Adds the means of ten events. */
function endTen() {
  const mean = (/** @type {(event: any) => number} */ of) => Math.round(ten.reduce((sum, event) => sum + of(event), 0) / ten.length);
  for (const column of COLUMNS) {
    const worst = Math.max(...ten.map((event) => event[column]));
    push(live.tens[column], column === "p99_ns" ? worst : mean((event) => event[column]), TENS);
  }
  const keys = new Set(live.rules.keys());
  for (const event of ten) for (const rule of event.rules) keys.add(ruleKey(rule.domain, rule.id));
  for (const key of keys) {
    const of = (/** @type {any} */ event) => event.rules.find((/** @type {any} */ rule) => ruleKey(rule.domain, rule.id) === key);
    const series = live.rules.get(key) || { admitted: [], refused: [], shadow: [] };
    for (const column of /** @type {const} */ (["admitted", "refused", "shadow"])) {
      push(series[column], mean((event) => of(event)?.[column] || 0), SPARK);
    }
    live.rules.set(key, series);
  }
  ten = [];
}

/** @param {number[]} ring @param {number} value @param {number} max */
function push(ring, value, max) {
  ring.push(value);
  if (ring.length > max) ring.shift();
}
