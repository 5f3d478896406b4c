// Helpers for every page: API requests, DOM elements, and number and time formats. This file imports nothing, so that
// it runs first and sends the first requests immediately.

// Requests to the public API. The session is a cookie that scripts cannot read.

/** The header of every request. Pages of other origins cannot send it. */
const OWN_HEADERS = { "tollgate-console": "1" };

/** Requests that every page needs, sent in advance. A page in the background does not read live data yet. */
const earlyRequests = new Map(
  ["/v1/session", ...(document.hidden ? [] : ["/v1/history"])].map((path) => {
    const response = fetch(path, { headers: OWN_HEADERS, cache: "no-store" });
    // The error is reported where the response is used.
    response.catch(() => {});
    return [path, response];
  }),
);

/** A failed request, with the problem details of the server. */
export class Problem extends Error {
  /** @param {number} status @param {any} details */
  constructor(status, details) {
    super(details.detail || details.title || `the server answered ${status}`);
    this.status = status;
    this.title = details.title || "Error";
    /** @type {any[]} */
    this.mistakes = details.mistakes || [];
    /** @type {string | undefined} */
    this.author = details.author;
    /** @type {number | undefined} */
    this.at_ms = details.at_ms;
    /** @type {string | undefined} */
    this.diff = details.diff;
    /** @type {string | undefined} */
    this.pointer = details.pointer;
  }
}

/** Shows the login dialog. Resolves when the user has logged in. @type {() => Promise<void>} */
let askForLogin = () => Promise.reject(new Problem(401, { detail: "not logged in" }));

/** @param {() => Promise<void>} asks */
export function onUnauthorized(asks) {
  askForLogin = asks;
}

/**
 * @typedef {object} Options
 * @property {any} [json] the body, as JSON
 * @property {string} [text] the body, as YAML
 * @property {FormData} [form] the body, as a form with files
 * @property {string} [ifMatch] the version that the change is based on
 * @property {string} [comment] the reason for the change
 * @property {AbortSignal} [signal]
 * @property {boolean} [withoutLogin] whether a missing session causes an error instead of the login dialog
 */

/**
 * Sends a request. Without a session, shows the login dialog and sends the request again, so that nothing on the page is lost.
 * @param {string} method
 * @param {string} path
 * @param {Options} [options]
 * @returns {Promise<Response>}
 */
export async function send(method, path, options = {}) {
  /** @type {Record<string, string>} */
  const headers = { ...OWN_HEADERS };
  let body;
  if (options.json !== undefined) {
    headers["content-type"] = "application/json";
    body = JSON.stringify(options.json);
  } else if (options.text !== undefined) {
    headers["content-type"] = "application/yaml";
    body = options.text;
  } else if (options.form !== undefined) {
    // The browser adds the content type with the boundary.
    body = options.form;
  }
  if (options.ifMatch) headers["if-match"] = options.ifMatch;
  if (options.comment) headers["tollgate-comment"] = encodeURIComponent(options.comment);
  for (;;) {
    let response;
    try {
      const first = method === "GET" ? earlyRequests.get(path) : undefined;
      if (first) earlyRequests.delete(path);
      response = await (first ?? fetch(path, { method, headers, body, signal: options.signal, cache: "no-store" }));
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new Problem(0, { title: "No answer", detail: "the server does not answer; it may be restarting" });
    }
    if (response.status === 401 && !options.withoutLogin) {
      await askForLogin();
      continue;
    }
    if (!response.ok) {
      throw new Problem(response.status, await response.json().catch(() => ({ title: response.statusText })));
    }
    return response;
  }
}

/** @param {string} path @param {AbortSignal} [signal] */
export async function get(path, signal) {
  return (await send("GET", path, { signal })).json();
}

/** @param {string} method @param {string} path @param {Options} [options] */
export async function call(method, path, options) {
  const response = await send(method, path, options);
  return response.status === 204 ? null : response.json();
}

/**
 * Decides a request. The request is sent as a list, because the response to a list has status 200 for any decision.
 * @param {string} path @param {any} request @param {AbortSignal} [signal]
 */
export async function decide(path, request, signal) {
  const [decision] = await call("POST", path, { json: [request], signal });
  if (decision.detail) throw new Problem(decision.status, decision);
  return decision;
}

/** Returns the API path of a rule. @param {string} domain @param {string} id @param {...string} rest */
export function rulePath(domain, id, ...rest) {
  return ["/v1/domains", domain, "rules", id, ...rest].map((part, at) => (at ? encodeURIComponent(part) : part)).join("/");
}

// DOM elements. Strings are always inserted as text, so that markup in names and values is never interpreted.

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Child | Child[]} Children */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Sets attributes. Names that start with `on` add listeners; `true` sets an empty attribute; `false` and null are skipped.
 * @param {Element} element
 * @param {Record<string, any>} attributes
 */
function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") /** @type {HTMLInputElement} */ (element).value = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
}

/**
 * @template {Element} E
 * @param {E} element
 * @param {Children[]} children
 * @returns {E}
 */
export function append(element, ...children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/**
 * Creates an element: `h("div.card", {id: "a"}, "text", child)`.
 * @param {string} name
 * @param {Record<string, any>} [attributes]
 * @param {...Children} children
 * @returns {HTMLElement}
 */
export function h(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  append(element, ...children);
  set(element, attributes);
  return element;
}

/**
 * Creates an SVG element.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...Children} children
 * @returns {SVGElement}
 */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  set(element, attributes);
  return append(element, ...children);
}

/**
 * Replaces the children of an element.
 * @template {Element} E
 * @param {E} element
 * @param {...Children} children
 * @returns {E}
 */
export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, ...children);
}

/** Resolves when the next frame has been drawn. Used to start less urgent work. @returns {Promise<void>} */
export const drawn = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

// Formats for numbers, times and durations.

/** Formats a count with all digits, in groups of three. @param {number} value */
export const count = (value) => String(value).replaceAll(/\B(?<!\..*)(?=(\d{3})+(?!\d))/g, ",");

/** Formats a count. From 10,000 on, uses at most three significant digits. @param {number} value */
export function short(value) {
  if (value < 10_000) return count(value);
  const rounded = Number(value.toPrecision(3));
  const [unit, letter] = rounded < 1e6 ? [1e3, "K"] : rounded < 1e9 ? [1e6, "M"] : rounded < 1e12 ? [1e9, "B"] : [1e12, "T"];
  return `${count(Number((rounded / unit).toPrecision(3)))}${letter}`;
}

/** Formats a duration in nanoseconds. @param {number | null | undefined} nanos */
export function nanos(nanos) {
  if (nanos === null || nanos === undefined || nanos === 0) return "–";
  if (nanos >= 4_294_967_295) return "> 4 s";
  if (nanos < 1_000_000) return `${trim(nanos / 1_000)} µs`;
  if (nanos < 1_000_000_000) return `${trim(nanos / 1_000_000)} ms`;
  return `${trim(nanos / 1_000_000_000)} s`;
}

/** Formats a duration in milliseconds. @param {number | null | undefined} ms */
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

/** Formats an instant in the user's time zone. @param {number} ms */
export function time(ms) {
  const date = new Date(ms);
  const pad = (/** @type {number} */ value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/** Formats a time of day in UTC, with the date unless it is today. @param {number} ms */
export function clock(ms) {
  const [day, hours] = new Date(ms).toISOString().split("T");
  return day === new Date().toISOString().slice(0, 10) ? hours.slice(0, 8) : `${day} ${hours.slice(0, 8)}`;
}

/** Formats a fraction as a percentage with three significant digits. @param {number} part @param {number} all */
export const percent = (part, all) => `${trim(all === 0 ? 0 : (part * 100) / all)} %`;

/** Formats the time since an instant. @param {number} ms */
export function ago(ms) {
  const seconds = Math.max(0, Math.floor((Date.now() - ms) / 1_000));
  if (seconds < 2) return "now";
  if (seconds < 90) return `${seconds} s ago`;
  if (seconds < 5_400) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 129_600) return `${Math.floor(seconds / 3_600)} h ago`;
  return `${Math.floor(seconds / 86_400)} days ago`;
}

/** Formats a number with its noun: `1 rule`, `2 rules`. @param {number} number @param {string} noun */
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
