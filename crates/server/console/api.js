// Calls of the public API. The session is a cookie that no script can read.

/** A failed call, with the problem details of the server. */
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

/** Asks for a login and resolves when there is a session again. @type {() => Promise<void>} */
let login = () => Promise.reject(new Problem(401, { detail: "not logged in" }));

/** @param {() => Promise<void>} asks */
export function onUnauthorized(asks) {
  login = asks;
}

/**
 * @typedef {object} Options
 * @property {any} [json] the body, as JSON
 * @property {string} [text] the body, as YAML
 * @property {FormData} [form] the body, as a form with files
 * @property {string} [ifMatch] the version that the change is based on
 * @property {string} [comment] why it is changed
 * @property {AbortSignal} [signal]
 * @property {boolean} [once] whether a missing session is an error, and the login page is not shown
 */

/**
 * Sends a request. Without a session, the reader is asked to log in and the request is sent again: nothing on the page is lost.
 * @param {string} method
 * @param {string} path
 * @param {Options} [options]
 * @returns {Promise<Response>}
 */
export async function send(method, path, options = {}) {
  /** @type {Record<string, string>} */
  const headers = { "tollgate-console": "1" };
  let body;
  if (options.json !== undefined) {
    headers["content-type"] = "application/json";
    body = JSON.stringify(options.json);
  } else if (options.text !== undefined) {
    headers["content-type"] = "application/yaml";
    body = options.text;
  } else if (options.form !== undefined) {
    // The browser adds the content type, which has the boundary.
    body = options.form;
  }
  if (options.ifMatch) headers["if-match"] = options.ifMatch;
  if (options.comment) headers["tollgate-comment"] = encodeURIComponent(options.comment);
  for (;;) {
    let response;
    try {
      response = await fetch(path, { method, headers, body, signal: options.signal, cache: "no-store" });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new Problem(0, { title: "No answer", detail: "the server does not answer; it may be restarting" });
    }
    if (response.status === 401 && !options.once) {
      await login();
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
 * Decides a request. It is sent as a list, whose response has status 200 for any decision. @param
 * {string} path @param {any} request @param {AbortSignal} [signal]
 */
export async function decide(path, request, signal) {
  const [decision] = await call("POST", path, { json: [request], signal });
  if (decision.detail) throw new Problem(decision.status, decision);
  return decision;
}

/** The path of a rule. @param {string} domain @param {string} id @param {...string} rest */
export function rulePath(domain, id, ...rest) {
  return ["/v1/domains", domain, "rules", id, ...rest].map((part, at) => (at ? encodeURIComponent(part) : part)).join("/");
}
