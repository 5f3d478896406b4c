// The audit page: the log of changes with author, time and comment.

import { append, fill, get, h } from "./base.js";
import { empty, errorBox, field, heading, input, link, ruleHref, table, when } from "./parts.js";
import { source } from "./server.js";

const FILTERS = ["domain", "author", "subject"];

/** @param {import("./parts.js").Page} page */
export function audit({ query, signal, setQuery }) {
  if (source !== "database") return h("div", {}, heading("Audit"), empty("The audit log is kept by the rules service.", `The rules of this server come from ${source}.`));
  const controls = FILTERS.map((name) => input({ id: `audit-${name}`, value: query.get(name) ?? "", oninput: find }));
  const list = h("div");
  let current = new AbortController();

  /** @param {string} [after] */
  const address = (after) => {
    const given = FILTERS.map((name, at) => [name, controls[at].value.trim()]).filter(([, value]) => value !== "");
    return `/v1/audit?${new URLSearchParams([...given, ["limit", "50"], ...(after ? [["after", after]] : [])])}`;
  };

  async function find() {
    current.abort();
    current = new AbortController();
    const { signal: own } = current;
    setQuery(Object.fromEntries(FILTERS.map((name, at) => [name, controls[at].value.trim()])));
    try {
      const page = await get(address(), own);
      if (!own.aborted && !signal.aborted) fill(list, page.items.length ? part(page) : empty("No entries.", "Changes of rules, overrides and tokens, resets and the kill switch are recorded here."));
    } catch (error) {
      if (!own.aborted && !signal.aborted) fill(list, errorBox(error));
    }
  }

  /** @param {any} page @returns {HTMLElement} */
  function part(page) {
    const rows = page.items.map((/** @type {any} */ entry) => [
      when(entry.at_ms),
      entry.author,
      `${entry.kind} ${entry.action}`,
      subject(entry),
      entry.comment ?? "",
      entry.before || entry.after ? details(entry) : "",
    ]);
    const block = h("div", {}, table("Audit log", ["When", "Author", "Action", "Subject", "Comment", "Values"], rows));
    if (page.next) {
      const button = h("button", { type: "button" }, "Older entries");
      const failure = h("div");
      const more = h("div", {}, h("p.center", {}, button), failure);
      const { signal: own } = current;
      button.addEventListener("click", async () => {
        try {
          const older = await get(address(page.next), own);
          if (own.aborted || signal.aborted) return;
          more.remove();
          append(list, part(older));
        } catch (error) {
          if (!own.aborted && !signal.aborted) fill(failure, errorBox(error));
        }
      });
      block.append(more);
    }
    return block;
  }

  find();
  const labels = ["Domain", "Author", "Rule, key or token"];
  return h("div", {}, heading("Audit"), h("div.filters", {}, ...controls.map((control, at) => field(labels[at], control))), list);
}

/** @param {any} entry */
function subject(entry) {
  const text = entry.domain ? `${entry.domain} / ${entry.subject}` : entry.subject;
  return entry.kind === "rule" && entry.domain ? link(`${ruleHref(entry.domain, entry.subject)}?tab=history`, text) : text;
}

/** @param {any} entry */
function details(entry) {
  const value = (/** @type {string} */ name, /** @type {any} */ json) => (json ? [h("p.muted.small", {}, name), h("pre", { tabindex: "0" }, JSON.stringify(json, null, 1))] : []);
  return h("details", {}, h("summary", {}, "Show"), ...value("before", entry.before), ...value("after", entry.after));
}
