// The keys page: the heaviest keys of each rule, and the remaining capacity of one key. A key can be reset, and its
// limits can be overridden.

import { call, count, decide, fill, get, h, plural, rulePath, short, span } from "./base.js";
import { badge, card, confirm, empty, errorBox, field, heading, input, link, load, ruleHref, select, table, toast } from "./parts.js";
import { requestForm, requestHref } from "./request.js";
import { needs, source } from "./server.js";

/** @typedef {import("./parts.js").Page} Page */

/** @param {Page} page */
export function keys(page) {
  const top = h("div");
  const filter = input({ type: "search", "aria-label": "Filter rules and keys", placeholder: "Filter by rule or key", value: page.query.get("q") ?? "" });
  /** @type {any} */
  let all = null;
  const show = () => fill(top, topTables(all, filter.value));
  filter.addEventListener("input", () => {
    page.setQuery({ q: filter.value });
    if (all) show();
  });
  load(
    top,
    get("/v1/top", page.signal),
    (found) => {
      all = found;
      return topTables(all, filter.value);
    },
    page.signal,
  );
  return h("div", {}, heading("Keys"), card("One key", oneKey(page)), h("div.toolbar", {}, h("h2", {}, "The heaviest keys"), filter), top);
}

/** @param {Page} page */
function oneKey(page) {
  const form = requestForm(page);
  const result = h("div", { "aria-live": "polite" });
  const peek = async () => {
    const request = form.read();
    try {
      fill(result, standing(request, await decide("/v1/peek", request, page.signal), peek));
    } catch (error) {
      if (!page.signal.aborted) fill(result, errorBox(error));
    }
  };
  const reset = () =>
    confirm({
      title: "Reset the counters of this request?",
      text: h("p", {}, "The counters of all matching rules become unused, and bans are lifted. The audit log records the reset."),
      button: "Reset",
      danger: true,
      act: async () => {
        const answer = await call("POST", "/v1/reset", { json: form.read() });
        toast(`${plural(answer.reset ?? 0, "counter")} reset`);
        await peek();
      },
    });
  const node = h(
    "form",
    {},
    form.node,
    h("div.actions", {}, h("button.primary", { type: "submit" }, "Peek"), h("button", { type: "button", onclick: reset, ...needs("operator", page.query.get("domain") ?? undefined) }, "Reset")),
    result,
  );
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    peek();
  });
  if (page.query.get("domain") && page.query.get("with")) peek();
  return node;
}

/** @param {import("./request.js").Request} request @param {any} decision @param {() => void} again */
function standing(request, decision, again) {
  const limits = decision.limits ?? [];
  const verdict = decision.allowed ? badge("good", "would be admitted") : badge("bad", "would be refused");
  if (limits.length === 0) {
    return empty("No limit applies to this request.", "A rule may need further attributes, such as path: ", link(requestHref("try", request.domain, pairs(request)), "see why under Try"), ".");
  }
  const rows = limits.map((/** @type {any} */ limit) => [
    [limit.rule ? link(ruleHref(request.domain, limit.rule), limit.rule) : "inline limit", limit.shadow && " ", limit.shadow && badge("warn", "shadow")],
    count(limit.limit),
    count(limit.remaining),
    limit.retry_after_ms === 0 ? "now" : span(limit.retry_after_ms),
    span(limit.reset_after_ms),
    limit.rule && source === "database" ? h("button.small", { type: "button", onclick: () => override(request, limit.rule, again), ...needs("operator", request.domain) }, "Override…") : "",
  ]);
  const number = (/** @type {string} */ name) => ({ name, number: true });
  return h("div", {}, h("p.verdict", {}, verdict), table("Remaining capacity", ["Rule", number("Limit"), number("Remaining"), number("Retry in"), number("Full in"), ""], rows));
}

/** @param {import("./request.js").Request} request @returns {[string, string][]} */
const pairs = (request) => Object.entries(request.attributes).flatMap(([name, values]) => [values].flat().map((value) => /** @type {[string, string]} */ ([name, value])));

/** Sets an override for one attribute value. @param {import("./request.js").Request} request @param {string} id @param {() => void} again */
async function override(request, id, again) {
  const stored = await get(rulePath(request.domain, id));
  const per = [stored.rule.per ?? []].flat().map(String);
  const attribute = select(per.length ? per : Object.keys(request.attributes), per[0] ?? "");
  const first = [request.attributes[attribute.value] ?? ""].flat()[0];
  const value = input({ value: first, required: true });
  const limit = input({ value: stored.rule.limit ?? "", placeholder: "500/s", required: true });
  const hours = select(["1 hour", "1 day", "1 week", "30 days", "until it is deleted"], "1 day");
  const comment = input();
  const lengths = [3_600, 86_400, 604_800, 2_592_000];
  confirm({
    title: `Override the limit of ${id}`,
    text: h("p", {}, "The override applies to requests with this value, on the same counter. Connected nodes apply it within a second."),
    fields: [field("Attribute", attribute), field("Value", value), field("Limit", limit), field("For", hours), field("Comment", comment)],
    button: "Set",
    act: async () => {
      const length = lengths[hours.selectedIndex];
      const until = length ? { until: new Date(Date.now() + length * 1_000).toISOString().replace(/\.\d+Z$/, "Z") } : {};
      const json = { limit: limit.value, attribute: attribute.value, ...until };
      await call("PUT", rulePath(request.domain, id, "overrides", value.value), { json, comment: comment.value });
      toast(`The override of ${value.value} is set.`);
      setTimeout(again, 1_200);
    },
  });
}

/** @param {any} all @param {string} filter */
function topTables(all, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const cards = [];
  for (const { domain, rule, charged, refused } of all.rules) {
    const name = rule === null ? "inline limits" : `${domain}/${rule}`;
    const matches = (/** @type {any} */ key) => words.every((word) => `${name} ${key.key}`.toLowerCase().includes(word));
    const kinds = [["Charged", charged.filter(matches)], ["Refused", refused.filter(matches)]];
    if (kinds.every(([, list]) => list.length === 0)) continue;
    const columns = kinds.filter(([, list]) => list.length > 0).map(([kind, list]) => table(`${kind} by ${name}`, ["Key", { name: String(kind), number: true }], list.slice(0, 10).map((/** @type {any} */ key) => keyRow(domain, key))));
    cards.push(h("section.card", {}, h("h3", {}, rule === null ? "Inline limits" : link(ruleHref(domain, rule), h("span.muted", {}, `${domain} / `), rule)), h("div.halves", {}, ...columns)));
  }
  if (cards.length) return h("div", {}, ...cards);
  return filter ? empty(`No key matches “${filter}”.`, "Keys are shown with the attributes that a rule counts by.") : empty("No recent decisions.", "The heaviest keys of each rule appear here with the first requests.");
}

/** @param {string} domain @param {any} key */
export function keyRow(domain, key) {
  // In the server's reply, the attributes by which a rule counts have the form `a=b, c=d`.
  const given = key.key.split(", ").map((/** @type {string} */ pair) => pair.split(/=(.*)/s));
  const attributes = given.filter((/** @type {string[]} */ pair) => pair.length > 1).map((/** @type {string[]} */ [name, value]) => /** @type {[string, string]} */ ([name, value]));
  const text = h("code", {}, key.key || "(all requests)");
  const shown = key.error ? `${short(key.count - key.error)}–${short(key.count)}` : short(key.count);
  return [domain && attributes.length ? link(requestHref("keys", domain, attributes), text) : text, shown];
}
