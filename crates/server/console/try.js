// The try page: explains how a request would be decided. Counters are charged only if the user confirms the
// charge.

import { call, count, decide, fill, h, plural, span } from "./base.js";
import { badge, card, confirm, empty, errorBox, heading, link, ruleHref, toast } from "./parts.js";
import { requestForm } from "./request.js";

/** The explanation of each standing except `exact`. @type {Record<string, string>} */
const STANDINGS = {
  leased: "Decided by this node, with tokens that the store granted in advance.",
  eventual: "Decided by this node, from its own view of the counters.",
  fallback: "Decided by on_fault: the store does not answer.",
};

/** @param {import("./parts.js").Page} page */
export function tryPage(page) {
  const form = requestForm(page);
  const result = h("div", { "aria-live": "polite" });

  async function explain() {
    const request = form.read();
    if (!request.domain) {
      fill(result, empty("No request yet.", "Enter a domain and the attributes that its rules match and count by."));
      return;
    }
    try {
      fill(result, tree(await call("POST", "/v1/explain", { json: request, signal: page.signal })));
    } catch (error) {
      if (!page.signal.aborted) fill(result, errorBox(error));
    }
  }

  const take = () =>
    confirm({
      title: "Take from the counters?",
      text: h("p", {}, "A check takes the cost from every limit that the request matches, as a real request does."),
      button: "Check",
      act: async () => {
        const decision = await decide("/v1/check", form.read());
        toast(decision.allowed ? "Admitted; the cost was taken." : "Refused; nothing was taken.");
        await explain();
      },
    });
  const node = h("form", {}, form.node, h("div.actions", {}, h("button.primary", { type: "submit" }, "Explain"), h("button", { type: "button", onclick: take }, "Check and take")));
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    explain();
  });
  explain();
  return h("div", {}, heading("Try a request"), card("", node), result);
}

/** @param {any} explanation */
function tree(explanation) {
  const { allowed, outcome, observed, rule, rules, left_out: leftOut } = explanation;
  const verdict = outcome === "delay" ? badge("warn", `delayed ${span(explanation.delay_ms)}`) : allowed ? badge("good", "admitted") : badge("bad", "refused");
  const matching = rules.filter((/** @type {any} */ one) => one.matches).length;
  return card(
    "",
    h("p.verdict", {}, verdict, " ", rule ? ["by ", link(ruleHref(explanation.domain, rule), rule)] : allowed ? "no enforced rule refuses it" : ""),
    observed && observed !== "allow" ? h("p.muted", {}, `Observe mode: the request is admitted. Outcome without it: ${observed}.`) : null,
    !allowed ? h("p.muted", {}, explanation.retry_after_ms === null ? "Waiting does not help." : `It would be admitted in ${span(explanation.retry_after_ms)}.`) : null,
    STANDINGS[explanation.standing] ? h("p.muted", {}, STANDINGS[explanation.standing]) : null,
    h("p.muted", {}, `${matching} of ${plural(rules.length + (leftOut ?? 0), "rule")} of the domain match.`),
    h("ul.tree", {}, ...rules.map((/** @type {any} */ one) => branch(explanation.domain, one))),
    h("details", {}, h("summary", {}, "As text"), h("pre", { tabindex: "0" }, explanation.text)),
  );
}

/** @param {string} domain @param {any} rule */
function branch(domain, rule) {
  const name = rule.rule ? link(ruleHref(domain, rule.rule), rule.rule) : h("b", {}, "inline limit");
  if (!rule.matches) return h("li", {}, badge("neutral", "no match"), " ", name, h("span.muted", {}, ` ${whyNot(rule)}`));
  const sign = rule.refuses ? badge(rule.shadow ? "warn" : "bad", rule.shadow ? "would refuse" : "refuses") : badge("good", "within limits");
  const counted = Object.entries(rule.counted_by ?? {}).map(([key, value]) => `${key}=${value ?? "(missing)"}`);
  return h(
    "li",
    {},
    sign,
    " ",
    name,
    rule.shadow ? [" ", badge("warn", "shadow")] : null,
    rule.banned ? [" ", badge("bad", "banned")] : null,
    h(
      "ul.tree",
      {},
      h("li", {}, counted.length ? ["counts by ", h("code", {}, counted.join(", "))] : "one counter for all requests", `, cost ${rule.cost ?? 1}`),
      rule.overrides?.applies ? h("li", {}, "override ", h("code", {}, rule.overrides.applies.when.join(", ")), ` applies (${rule.overrides.applies.position})`) : null,
      rule.on_fault ? h("li", {}, `decided by on_fault: ${rule.on_fault}`) : null,
      rule.ban?.until ? h("li", {}, `banned until ${rule.ban.until}`) : null,
      ...(rule.limits ?? []).map(leaf),
    ),
  );
}

/** @param {any} limit */
function leaf(limit) {
  const meter = /** @type {HTMLMeterElement} */ (
    h("meter", { min: "0", max: String(Math.max(1, limit.limit)), value: String(limit.remaining), "aria-label": `${limit.remaining} of ${limit.limit} left` })
  );
  meter.setAttribute("value", String(limit.remaining));
  const full = limit.reset_after_ms ? `, full in ${span(limit.reset_after_ms)}` : "";
  return h("li.limit", {}, h("code", {}, limit.written ?? count(limit.limit)), meter, h("span", {}, `${count(limit.remaining)} of ${count(limit.limit)} left`, h("span.muted", {}, full)));
}

/** @param {any} rule */
function whyNot(rule) {
  switch (rule.why) {
    case "condition":
      return rule.found === null || rule.found === undefined ? `needs ${rule.attribute}: ${rule.expected}` : `needs ${rule.attribute}: ${rule.expected}, but it is ${rule.found}`;
    case "decided_before":
      return `not evaluated: ${rule.by} has decided`;
    case "other_attributes":
      return "the request has attributes that the rule does not allow";
    case "expression":
      return `its expression is false in part ${rule.part} of ${rule.parts}`;
    case "outside_schedule":
      return `outside its schedule ${rule.schedule}`;
    default:
      return rule.why ?? "";
  }
}
