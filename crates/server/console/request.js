// The request form: a domain, attributes and a cost. The URL stores the values of the form.

import { fill, get, h } from "./base.js";
import { field, input } from "./parts.js";
import { source } from "./server.js";

/** @typedef {{domain: string, attributes: Record<string, string | string[]>, cost?: number}} Request */

/**
 * Creates the form.
 * @param {import("./parts.js").Page} page
 * @returns {{node: HTMLElement, read: () => Request}}
 */
export function requestForm({ query, signal, setQuery }) {
  const known = h("datalist", { id: "domains" });
  const domain = input({ value: query.get("domain") ?? "", list: "domains", required: true, placeholder: "api" });
  const cost = input({ type: "number", min: "0", value: query.get("cost") ?? "", placeholder: "1" });
  const rows = h("div.rows");

  /** @param {string} name @param {string} value */
  function addRow(name, value) {
    const label = `attribute ${rows.children.length + 1}`;
    const row = h(
      "div.row",
      {},
      input({ value: name, "aria-label": `Name of ${label}`, placeholder: "name, such as path", oninput: write }),
      input({ value, "aria-label": `Value of ${label}`, placeholder: "value", oninput: write }),
      h("button.small", { type: "button", "aria-label": `Remove ${label}`, onclick: () => (row.remove(), write()) }, "Remove"),
    );
    rows.append(row);
  }

  /** @returns {[string, string][]} */
  const pairs = () =>
    [...rows.children]
      .map((row) => /** @type {[string, string]} */ ([...row.querySelectorAll("input")].map((control) => control.value)))
      .filter(([name]) => name.trim() !== "");

  function write() {
    setQuery({ domain: domain.value, cost: cost.value, with: JSON.stringify(pairs()) === "[]" ? null : JSON.stringify(pairs()) });
  }

  domain.addEventListener("input", write);
  cost.addEventListener("input", write);
  for (const [name, value] of given(query)) addRow(name, value);
  if (rows.children.length === 0) addRow("", "");
  if (source === "database") {
    get("/v1/domains", signal)
      .then((list) => fill(known, ...list.items.map((/** @type {any} */ item) => h("option", { value: item.domain }))))
      .catch(() => {});
  }
  const add = () => {
    addRow("", "");
    /** @type {HTMLElement | null} */ (rows.lastElementChild?.querySelector("input") ?? null)?.focus();
  };
  const node = h(
    "div",
    {},
    known,
    h("div.columns", {}, field("Domain", domain), field("Cost", cost, "if empty: the cost set by each rule, by default 1")),
    h("div.field", { role: "group", "aria-label": "Attributes" }, h("span.label", {}, "Attributes"), rows),
    h("button.small", { type: "button", onclick: add }, "Add an attribute"),
  );
  return {
    node,
    read() {
      /** @type {Record<string, string | string[]>} */
      const attributes = {};
      for (const [name, value] of pairs()) {
        attributes[name] = name in attributes ? [attributes[name], value].flat() : value;
      }
      return { domain: domain.value.trim(), attributes, ...(cost.value === "" ? {} : { cost: Number(cost.value) }) };
    },
  };
}

/** Returns the attributes in the URL. @param {URLSearchParams} query @returns {[string, string][]} */
function given(query) {
  try {
    const pairs = JSON.parse(query.get("with") ?? "[]");
    return pairs.filter((/** @type {any} */ pair) => Array.isArray(pair)).map((/** @type {any[]} */ [name, value]) => [String(name), String(value)]);
  } catch {
    return [];
  }
}

/** Returns the URL of a page with a request filled in. @param {string} page @param {string} domain @param {[string, string][]} pairs */
export const requestHref = (page, domain, pairs) =>
  `/${page}?${new URLSearchParams({ domain, ...(pairs.length ? { with: JSON.stringify(pairs) } : {}) })}`;
