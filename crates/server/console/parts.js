// Parts that several pages share.

import { Problem } from "./api.js";
import { fill, h } from "./dom.js";
import { ago, time } from "./format.js";

/** @typedef {import("./dom.js").Children} Children */

/**
 * What a page gets.
 * @typedef {object} Page
 * @property {string[]} parts the parts of the path after the name of the page
 * @property {URLSearchParams} query
 * @property {AbortSignal} signal aborted when the reader leaves the page
 * @property {(changes: Record<string, string | null>) => void} setQuery changes the address, without a new entry in the history
 */

/** @param {string} title @param {...Children} actions */
export const heading = (title, ...actions) =>
  h("header.heading", {}, h("h1", { tabindex: "-1" }, title), h("div.actions", {}, ...actions));

/** A link within the console. @param {string} path @param {...Children} children */
export const link = (path, ...children) => h("a", { href: `/console${path}` }, ...children);

/** @param {string} domain @param {string} id */
export const ruleHref = (domain, id) => `/rules/${encodeURIComponent(domain)}/${encodeURIComponent(id)}`;

/** @param {string} kind @param {...Children} text */
export const badge = (kind, ...text) => h(`span.badge.${kind}`, {}, ...text);

/** A hint shown in place of an empty list. @param {string} title @param {...Children} hint */
export const empty = (title, ...hint) => h("div.empty", {}, h("p.empty-title", {}, title), h("p.muted", {}, ...hint));

/** A section with a title. @param {string} title @param {...Children} children */
export const card = (title, ...children) => h("section.card", {}, title ? h("h2", {}, title) : null, ...children);

/** An instant: how long ago, and exactly. @param {number} ms */
export const when = (ms) => h("time", { title: time(ms), datetime: new Date(ms).toISOString() }, ago(ms));

/** What is wrong. @param {unknown} error */
export function errorText(error) {
  if (error instanceof Problem) return error.message;
  return error instanceof Error ? error.message : String(error);
}

/** A box that shows an error. @param {unknown} error */
export function errorBox(error) {
  const box = h("div.notice.bad", { role: "alert" }, h("b", {}, error instanceof Problem ? error.title : "Error"), " ", errorText(error));
  if (error instanceof Problem && error.author) {
    box.append(h("p", {}, `The last change was made by ${error.author}${error.at_ms ? `, ${ago(error.at_ms)}` : ""}.`));
  }
  if (error instanceof Problem && error.diff) box.append(diffView(error.diff));
  return box;
}

/**
 * A table. Narrow screens show each row as a block, with the names of the columns before the values.
 * @param {string} label
 * @param {(string | {name: string, number?: boolean})[]} columns
 * @param {Children[][]} rows
 */
export function table(label, columns, rows) {
  const heads = columns.map((column) => (typeof column === "string" ? { name: column } : column));
  const cell = (/** @type {Children} */ value, /** @type {number} */ at) =>
    h("td", { "data-label": heads[at].name, class: heads[at].number ? "number" : null }, Array.isArray(value) ? h("span.cell", {}, ...value) : value);
  return h(
    "table",
    { "aria-label": label },
    h("thead", {}, h("tr", {}, ...heads.map((head) => h("th", { scope: "col", class: head.number ? "number" : null }, head.name || h("span.hidden", {}, "Actions"))))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell)))),
  );
}

/** Lines that begin with `+`, `-` or a space. @param {string} diff */
export function diffView(diff) {
  const kinds = /** @type {Record<string, string>} */ ({ "+": "added", "-": "removed" });
  const lines = diff.replace(/\n$/, "").split("\n");
  return h("pre.diff", { tabindex: "0" }, ...lines.map((line) => h("span.line" + (kinds[line[0]] ? `.${kinds[line[0]]}` : ""), {}, `${line}\n`)));
}

/** @param {string} text */
export const code = (text) => h("pre.code", { tabindex: "0" }, text);

/**
 * Tabs, as links: the address holds which is open.
 * @param {string} label
 * @param {{name: string, href: string, open: boolean}[]} items
 */
export const tabs = (label, items) =>
  h("nav.tabs", { "aria-label": label }, ...items.map(({ name, href, open }) => h("a", { href, "aria-current": open ? "page" : null }, name)));

/**
 * A labelled control.
 * @param {string} label
 * @param {HTMLElement} control
 * @param {string} [hint]
 */
export function field(label, control, hint) {
  control.id ||= `f-${label.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  return h("div.field", {}, h("label", { for: control.id }, label), control, hint ? h("p.muted.small", {}, hint) : null);
}

/** @param {Record<string, any>} [attributes] */
export const input = (attributes) =>
  /** @type {HTMLInputElement} */ (h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes }));

/** @param {string[]} values @param {string} chosen @param {Record<string, any>} [attributes] */
export const select = (values, chosen, attributes = {}) =>
  /** @type {HTMLSelectElement} */ (h("select", attributes, ...values.map((value) => h("option", { selected: value === chosen }, value))));

/**
 * Asks before something is done. `act` runs when the user confirms; its error is shown and the dialog stays
 * open. @param {object} options @param {string} options.title @param {Children} options.text @param {string}
 * options.button @param {string} [options.word] what must be typed first @param {boolean} [options.danger]
 * @param {Children} [options.fields] @param {() => Promise<unknown>} options.act
 */
export function confirm({ title, text, button, word, danger, fields, act }) {
  const error = h("div");
  const typed = word ? input({ id: "confirm-word", "aria-describedby": "confirm-text" }) : null;
  const submit = h(danger ? "button.danger" : "button.primary", { type: "submit", disabled: word !== undefined }, button);
  const close = () => dialog.remove();
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "confirm-title" }, title),
    h("div", { id: "confirm-text" }, ...(Array.isArray(text) ? text : [text])),
    ...(Array.isArray(fields) ? fields : [fields ?? null]),
    typed && h("div.field", {}, h("label", { for: "confirm-word" }, "Type ", h("b", {}, word ?? ""), " to confirm"), typed),
    error,
    h("div.actions", {}, h("button", { type: "button", onclick: close }, "Cancel"), submit),
  );
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog", { "aria-labelledby": "confirm-title" }, form));
  dialog.addEventListener("close", close);
  typed?.addEventListener("input", () => submit.toggleAttribute("disabled", typed.value.trim() !== word));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.setAttribute("disabled", "");
    try {
      await act();
      close();
    } catch (problem) {
      fill(error, errorBox(problem));
      submit.removeAttribute("disabled");
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  (typed ?? /** @type {HTMLElement | null} */ (form.querySelector("input, select")) ?? submit).focus();
}

/** Shows a short confirmation message. @param {string} text */
export function toast(text) {
  const node = h("div.toast", { role: "status" }, text);
  document.body.append(node);
  setTimeout(() => node.remove(), 4_000);
}

/**
 * Shows the result of a promise, or its error. @template T @param {HTMLElement} place @param
 * {Promise<T>} promise @param {(value: T) => Children} show @param {AbortSignal} signal
 */
export async function load(place, promise, show, signal) {
  try {
    const value = await promise;
    if (!signal.aborted) {
      const shown = show(value);
      fill(place, ...(Array.isArray(shown) ? shown : [shown]));
    }
  } catch (error) {
    if (!signal.aborted) fill(place, errorBox(error));
  }
}
