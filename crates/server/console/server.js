// The state of the server: the user's session and role, and live data. The server enforces roles; the console only disables
// controls and explains why.

import { call, drawn, h, onUnauthorized, Problem, send } from "./base.js";

/** @typedef {{name: string, role: string, domains: string[], tokens_required: boolean, rules_source: string, version: string}} Session */

const ROLES = ["reader", "node", "operator", "editor", "admin"];

/** The source of this server's rules; `database` if it is a rules service. */
export let source = "";

/** @type {Session} */
export let session = { name: "", role: "reader", domains: [], tokens_required: true, rules_source: "", version: "" };

/** @param {Session} own */
function setSession(own) {
  session = own;
  source = own.rules_source;
}

/** Returns whether the user has a role in `domain`, or in all domains if `domain` is omitted. @param {string} role @param {string} [domain] */
export function may(role, domain) {
  const has = ROLES.indexOf(session.role) >= ROLES.indexOf(role);
  const scoped = session.role !== "admin" && session.domains.length > 0;
  return has && (!scoped || (domain !== undefined && session.domains.includes(domain)));
}

/** Returns the attributes of a control that needs a role: it is disabled if the user lacks the role. @param {string} role @param {string} [domain] */
export function needs(role, domain) {
  if (may(role, domain)) return {};
  const place = domain === undefined ? "all domains" : `the domain ${domain}`;
  const own = session.domains.length > 0 ? ` for ${session.domains.join(", ")}` : "";
  return { disabled: true, title: `This needs the role ${role} for ${place}; the token “${session.name}” has the role ${session.role}${own}.` };
}

/** Reads the session. If there is none, the user must log in first. */
export async function start() {
  onUnauthorized(login);
  setSession(await call("GET", "/v1/session"));
}

/** @type {Promise<void> | null} */
let open = null;

/** Shows the login dialog. All requests that wait for a login share one dialog. @returns {Promise<void>} */
function login() {
  open ??= showLoginDialog().finally(() => (open = null));
  return open;
}

/** @returns {Promise<void>} */
function showLoginDialog() {
  return new Promise((resolve) => {
    const ended = session.name !== "";
    const input = /** @type {HTMLInputElement} */ (
      h("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false" })
    );
    const error = h("p.error", { role: "alert" });
    const button = h("button.primary", { type: "submit" }, "Log in");
    const form = h(
      "form",
      { method: "dialog" },
      h("h2", {}, ended ? "Your session has ended" : "Log in to Tollgate"),
      h("p.muted", {}, ended ? "Log in to continue; nothing on the page is lost." : "The console has the rights of your token."),
      h("label", { for: "token" }, "Token"),
      input,
      error,
      h("div.actions", {}, button),
      h("p.muted.small", {}, "Create a token on the server: ", h("code", {}, "tollgate tokens create --role reader --name me")),
    );
    const dialog = /** @type {HTMLDialogElement} */ (h("dialog.login", { "aria-label": "Log in" }, form));
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      button.setAttribute("disabled", "");
      try {
        setSession(await call("POST", "/v1/session", { json: { token: input.value }, withoutLogin: true }));
        dialog.remove();
        resolve();
        document.dispatchEvent(new CustomEvent("session"));
      } catch (problem) {
        error.textContent = problem instanceof Problem ? problem.message : String(problem);
        button.removeAttribute("disabled");
        input.select();
      }
    });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}

/** Ends the session. */
export async function logout() {
  await send("DELETE", "/v1/session", { withoutLogin: true }).catch(() => {});
  location.assign("/console");
}

// Live data: the history, then one event per second.

/** @typedef {{admitted: number[], refused: number[], shadow: number[]}} RuleSeries */
/** @typedef {RuleSeries & {fallback: number[], mean_ns: number[], p99_ns: number[]}} Series */

const COLUMNS = /** @type {const} */ (["admitted", "refused", "shadow", "fallback", "mean_ns", "p99_ns"]);
const SECONDS = 900;
const TENS = 360;
/** Number of rules for which the server keeps a history. These are the busiest rules. */
export const TRACKED = 64;
/** Number of points of a sparkline: one per ten seconds, for ten minutes. */
export const SPARK = 60;

/** @returns {Series} */
const emptySeries = () => ({ admitted: [], refused: [], shadow: [], fallback: [], mean_ns: [], p99_ns: [] });

/** The latest live data. */
export const live = {
  /** The last event. @type {any} */
  last: null,
  /** The reason why no events arrive; empty while events arrive. @type {string} */
  lost: "",
  seconds: emptySeries(),
  tens: emptySeries(),
  /** Keyed by domain and id, see `ruleKey`. @type {Map<string, RuleSeries>} */
  rules: new Map(),
};

/** @param {string} domain @param {string} id */
export const ruleKey = (domain, id) => `${domain}\n${id}`;

/** @type {Set<() => void>} */
const listeners = new Set();
/** @type {any[]} */
let ten = [];

/** Calls `listener` after every event until `signal` aborts. @param {() => void} listener @param {AbortSignal} signal */
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
 * Reads events while the page is open. A page in the background has no stream, because each stream needs a connection and
 * browsers open only a few connections to one server.
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
      // Draw the history before the stream begins.
      await drawn();
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
          handleEvent(JSON.parse(event.slice(6)));
          wait = 500;
        }
      }
      setLost("The server closed the live-data stream.");
    } catch (error) {
      if (signal.aborted) {
        wait = 500;
        continue;
      }
      setLost(error instanceof Problem ? error.message : "The connection to the server was lost.");
    }
    hidden.abort();
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

/** @param {string} why */
function setLost(why) {
  live.lost = why;
  listeners.forEach((listener) => listener());
}

/** @param {any} event */
function handleEvent(event) {
  live.last = event;
  live.lost = "";
  for (const column of COLUMNS) push(live.seconds[column], event[column], SECONDS);
  ten.push(event);
  if (ten.length === 10) addTenSecondPoint();
  listeners.forEach((listener) => listener());
}

/** Adds a ten-second point: the mean of ten events, or the maximum for the 99th percentile. */
function addTenSecondPoint() {
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
