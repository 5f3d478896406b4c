// Rules: all rules in force on this server, found by a few words.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { plural, short } from "./format.js";
import { live, onEvent, ruleKey, SPARK } from "./live.js";
import { badge, empty, errorBox, heading, input, link, ruleHref, table } from "./parts.js";
import { sparkline } from "./plot.js";
import { source } from "./session.js";

/** The rows of a page; more are shown on demand. */
const ROWS = 100;

/** @param {import("./parts.js").Page} page */
export function rules({ query, signal, setQuery }) {
  const state = query.get("state") === "disabled" ? "disabled" : "in force";
  const search = input({ type: "search", "aria-label": "Search rules", placeholder: "Search by domain, id, limit or attribute", value: query.get("q") ?? "" });
  const result = h("div");
  const summary = h("p.muted", { role: "status" });
  /** @type {{key: string, place: HTMLElement}[]} */
  let sparks = [];
  let current = new AbortController();

  async function find() {
    current.abort();
    current = new AbortController();
    const { signal: own } = current;
    setQuery({ q: search.value });
    try {
      const page = state === "disabled" ? await disabled(search.value, own) : await get(address(search.value, 0), own);
      if (own.aborted || signal.aborted) return;
      sparks = [];
      show(page.items, page.total, page.next);
    } catch (error) {
      if (!own.aborted) fill(result, errorBox(error));
    }
  }

  /** @param {any[]} items @param {number} total @param {number} [next] */
  function show(items, total, next) {
    summary.textContent = search.value ? `${plural(total, "rule")} found` : plural(total, "rule");
    if (total === 0) {
      fill(result, nothing(search.value, state));
      return;
    }
    const columns = ["Rule", "Limits", "Per", "State", ...(state === "disabled" ? [] : ["Last 10 min", { name: "Allowed", number: true }, { name: "Refused", number: true }])];
    const list = table("Rules", columns, items.map(row));
    fill(result, list, next !== undefined && more(next, items, total));
    drawSparks();
  }

  /** @param {any} rule */
  function row(rule) {
    const name = link(ruleHref(rule.domain, rule.id), h("span.muted", {}, `${rule.domain} / `), rule.id);
    const cells = [name, rule.limits.join(" · "), rule.per.join(", ") || h("span.muted", {}, "all together"), stateBadge(rule)];
    if (state === "disabled") return cells;
    const place = h("span");
    sparks.push({ key: ruleKey(rule.domain, rule.id), place });
    return [...cells, place, short(rule.allowed), short(rule.refused + rule.shadow_refused)];
  }

  /** @param {number} next @param {any[]} items @param {number} total */
  function more(next, items, total) {
    const button = h("button", { type: "button" }, `Show more (${plural(total - next, "rule")} left)`);
    button.addEventListener("click", async () => {
      const page = await get(address(search.value, next), signal);
      sparks = [];
      show([...items, ...page.items], page.total, page.next);
    });
    return h("p.center", {}, button);
  }

  function drawSparks() {
    for (const { key, place } of sparks) {
      const series = live.rules.get(key);
      fill(place, series ? sparkline(series, SPARK) : h("span.muted.small", {}, "quiet"));
    }
  }

  let events = 0;
  onEvent(() => (events++ % 10 === 0 ? drawSparks() : undefined), signal);
  search.addEventListener("input", find);
  find();
  const choice = (/** @type {string} */ name) =>
    h("a", { href: name === "disabled" ? "/console/rules?state=disabled" : "/console/rules", "aria-current": name === state ? "page" : null }, name);
  return h(
    "div",
    {},
    heading("Rules"),
    h("div.toolbar", {}, search, h("nav.tabs", { "aria-label": "State" }, choice("in force"), choice("disabled"))),
    summary,
    result,
  );
}

/** @param {string} search @param {number} after */
function address(search, after) {
  const query = new URLSearchParams({ limit: String(ROWS) });
  if (search) query.set("q", search);
  if (after) query.set("after", String(after));
  return `/v1/rules?${query}`;
}

/** Returns the disabled rules, which are not in force and known to the rules service only. @param {string} search @param {AbortSignal} signal */
async function disabled(search, signal) {
  if (source !== "database") return { items: [], total: 0, next: undefined };
  const domains = (await get("/v1/domains", signal)).items;
  const items = [];
  for (const { domain } of domains) {
    const query = new URLSearchParams({ enabled: "false", limit: String(ROWS), ...(search ? { q: search } : {}) });
    const page = await get(`/v1/domains/${encodeURIComponent(domain)}/rules?${query}`, signal);
    for (const { id, rule } of page.items) {
      const limits = rule.limit ? [rule.limit] : (rule.limits ?? []).map((/** @type {any} */ limit) => limit.limit ?? limit);
      items.push({ domain, id, limits: limits.map(String), per: [rule.per ?? []].flat().map(String), disabled: true });
    }
    if (items.length >= ROWS) break;
  }
  return { items, total: items.length, next: undefined };
}

/** @param {any} rule */
export function stateBadge(rule) {
  if (rule.disabled) return badge("neutral", "disabled");
  return rule.shadow ? badge("warn", "shadow") : badge("good", "enforced");
}

/** @param {string} search @param {string} state */
function nothing(search, state) {
  if (search) return empty(`No rule matches “${search}”.`, "The words are searched in the domain, the id, the limits and the attributes that a rule counts by.");
  if (state === "disabled") return empty("No rule is disabled.", "A disabled rule stays in the database, and nodes do not receive it.");
  return empty("No rules are in force.", link("/editor", "Write the first one in the editor"));
}
