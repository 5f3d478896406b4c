// The rules page: searches the rules in force on this server.

import { fill, get, h, plural, short } from "./base.js";
import { badge, empty, errorBox, heading, input, link, ruleHref, sparkline, table } from "./parts.js";
import { live, onEvent, ruleKey, source, SPARK, TRACKED } from "./server.js";

/** Page size, in rows. More rows are shown on demand. */
const ROWS = 100;

/** The states to choose from, with their values in the URL. @type {Record<string, string | null>} */
const STATES = { "in force": null, enforced: "enforced", shadow: "shadow", disabled: "disabled" };

/** @param {import("./parts.js").Page} page */
export function rules({ query, signal, setQuery }) {
  const state = Object.keys(STATES).find((name) => STATES[name] === query.get("state")) ?? "in force";
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
      const page = await read(0, own);
      if (own.aborted || signal.aborted) return;
      sparks = [];
      show(page.items, page.total, page.next);
    } catch (error) {
      if (!own.aborted && !signal.aborted) fill(result, errorBox(error));
    }
  }

  /** Reads one page of the list. @param {number} after @param {AbortSignal} signal */
  const read = (after, signal) => (state === "disabled" ? disabled(search.value, after, signal) : get(address(search.value, STATES[state], after), signal));

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
    const cells = [name, rule.limits.join(" · "), rule.per.join(", ") || h("span.muted", {}, "all requests"), stateBadge(rule)];
    if (state === "disabled") return cells;
    const place = h("span");
    sparks.push({ key: ruleKey(rule.domain, rule.id), place });
    return [...cells, place, short(rule.allowed), short(rule.refused + rule.shadow_refused)];
  }

  /** @param {number} next @param {any[]} items @param {number} total */
  function more(next, items, total) {
    const button = h("button", { type: "button" }, `Show more (${plural(total - next, "rule")} left)`);
    const failure = h("div");
    const { signal: own } = current;
    button.addEventListener("click", async () => {
      try {
        const page = await read(next, own);
        if (own.aborted || signal.aborted) return;
        sparks = [];
        show([...items, ...page.items], page.total, page.next);
      } catch (error) {
        if (!own.aborted && !signal.aborted) fill(failure, errorBox(error));
      }
    });
    return h("div", {}, h("p.center", {}, button), failure);
  }

  function drawSparks() {
    for (const { key, place } of sparks) {
      const series = live.rules.get(key);
      fill(place, series ? sparkline(series, SPARK) : h("span.muted.small", {}, live.rules.size < TRACKED ? "quiet" : "not tracked"));
    }
  }

  let events = 0;
  onEvent(() => (events++ % 10 === 0 ? drawSparks() : undefined), signal);
  search.addEventListener("input", find);
  find();
  const choice = (/** @type {string} */ name) =>
    h("a", { href: `/console/rules${STATES[name] ? `?state=${STATES[name]}` : ""}`, "aria-current": name === state ? "page" : null }, name);
  return h(
    "div",
    {},
    heading("Rules"),
    h("div.toolbar", {}, search, h("nav.tabs", { "aria-label": "State" }, ...Object.keys(STATES).map(choice))),
    summary,
    result,
  );
}

/** @param {string} search @param {string | null} state @param {number} after */
function address(search, state, after) {
  const query = new URLSearchParams({ limit: String(ROWS) });
  if (state) query.set("state", state);
  if (search) query.set("q", search);
  if (after) query.set("after", String(after));
  return `/v1/rules?${query}`;
}

/**
 * Returns one page of the disabled rules. Disabled rules are not in force, so only the rules service has them.
 * @param {string} search @param {number} after @param {AbortSignal} signal
 */
async function disabled(search, after, signal) {
  if (source !== "database") return { items: [], total: 0, next: undefined };
  const all = [];
  for (const { domain } of (await get("/v1/domains", signal)).items) {
    const query = new URLSearchParams({ enabled: "false", limit: "1000", ...(search ? { q: search } : {}) });
    for (;;) {
      const page = await get(`/v1/domains/${encodeURIComponent(domain)}/rules?${query}`, signal);
      all.push(...page.items.map((/** @type {any} */ { id, rule }) => ({ domain, id, rule })));
      if (!page.next) break;
      query.set("after", page.next);
    }
  }
  const items = all.slice(after, after + ROWS).map(({ domain, id, rule }) => {
    const limits = rule.limit ? [rule.limit] : (rule.limits ?? []).map((/** @type {any} */ limit) => limit.limit ?? limit);
    return { domain, id, limits: limits.map(String), per: [rule.per ?? []].flat().map(String), disabled: true };
  });
  return { items, total: all.length, next: after + ROWS < all.length ? after + ROWS : undefined };
}

/** @param {any} rule */
export function stateBadge(rule) {
  if (rule.disabled) return badge("neutral", "disabled");
  return rule.shadow ? badge("warn", "shadow") : badge("good", "enforced");
}

/** @param {string} search @param {string} state */
function nothing(search, state) {
  if (search) return empty(`No rule matches “${search}”.`, "The search covers the domain, the id, the limits and the attributes that a rule counts by.");
  if (state === "shadow") return empty("There are no shadow rules.", "A rule with on_exceed: shadow reports what it would refuse, and refuses nothing.");
  if (state === "disabled") return empty("No rule is disabled.", "A disabled rule stays in the database, and nodes do not receive it.");
  return empty("No rules are in force.", link("/editor", "Write the first rule in the editor"));
}
