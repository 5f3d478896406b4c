// The editor page: marks mistakes at their lines while the user types. Before changes are applied, it shows the plan with
// a diff, and asks for a comment.

import { call, fill, h, plural, Problem, send } from "./base.js";
import { badge, card, diffView, empty, errorBox, errorText, field, heading, input, link, ruleHref, toast } from "./parts.js";
import { replayForm } from "./replay.js";
import { may, needs, source } from "./server.js";

/** Typing pause after which the text is checked, in milliseconds. */
const TYPING_PAUSE_MS = 250;

const EXAMPLE = `domain: api
rules:
  - id: per-client
    when: { path: "/v1/**" }
    per: [api_key]
    limit: 100/s
    burst: 200
`;

/** @param {import("./parts.js").Page} page */
export function editor({ query, signal }) {
  if (source !== "database") return h("div", {}, heading("Editor"), empty("The rules of this server are not edited here.", `They come from ${source}; change them there.`));
  const [domain, rule] = [query.get("domain"), query.get("rule")];
  // The draft is kept until the tab is closed, even if the user opens another page.
  const draft = `draft ${domain ?? ""} ${rule ?? ""}`;
  const text = /** @type {HTMLTextAreaElement} */ (
    h("textarea", { id: "rules", spellcheck: "false", autocomplete: "off", wrap: "off", rows: "14", "aria-label": "Rule file", "aria-describedby": "findings" })
  );
  const numbers = h("div.numbers");
  const gutter = h("div.gutter", { "aria-hidden": "true" }, numbers);
  const findings = h("div.findings", { id: "findings", role: "status" });
  const outcome = h("div", { "aria-live": "polite" });
  const others = input({ type: "checkbox", id: "others" });
  const planButton = h("button.primary", { type: "button", onclick: plan }, "Plan");
  /** @type {number | undefined} */
  let timer;
  let checks = 0;

  function changed() {
    sessionStorage.setItem(draft, text.value);
    writeLineNumbers(new Map());
    clearTimeout(timer);
    timer = setTimeout(check, TYPING_PAUSE_MS);
  }

  /** Writes the line numbers, and highlights the lines in `marks`. @param {Map<number, string>} marks */
  function writeLineNumbers(marks) {
    const lines = text.value.split("\n").length;
    fill(numbers, ...Array.from({ length: lines }, (_, at) => h(`div${marks.has(at + 1) ? `.${marks.get(at + 1)}` : ""}`, {}, at + 1)));
    scroll();
  }

  function scroll() {
    numbers.style.transform = `translateY(${-text.scrollTop}px)`;
  }

  async function check() {
    const mine = ++checks;
    try {
      const found = await call("POST", "/v1/validate", { text: text.value, signal });
      if (mine !== checks || signal.aborted) return;
      writeLineNumbers(new Map([...found.warnings.map((/** @type {any} */ one) => [one.line, "warned"]), ...found.mistakes.map((/** @type {any} */ one) => [one.line, "wrong"])]));
      const list = [...found.mistakes.map((/** @type {any} */ one) => finding(one, "bad")), ...found.warnings.map((/** @type {any} */ one) => finding(one, "warn"))];
      fill(findings, list.length ? h("ul", {}, ...list) : h("p.muted", {}, badge("good", "valid"), ` ${plural(found.rules, "rule")}`));
      planButton.toggleAttribute("disabled", found.mistakes.length > 0);
    } catch (error) {
      if (mine === checks && !signal.aborted) fill(findings, errorBox(error));
    }
  }

  /** @param {any} one @param {string} kind */
  function finding(one, kind) {
    const jump = () => {
      const start = text.value.split("\n").slice(0, one.line - 1).join("\n").length + (one.line > 1 ? 1 : 0);
      text.focus();
      text.setSelectionRange(start + one.column - 1, start + one.column - 1);
    };
    return h(`li.${kind}`, {}, h("button.small", { type: "button", onclick: jump }, `Line ${one.line}`), " ", one.problem, one.help ? h("span.muted", {}, ` ${one.help}`) : null);
  }

  async function plan() {
    try {
      const address = `/v1/apply?plan=true&others=${others.checked ? "delete" : "keep"}`;
      showPlan(await call("POST", address, { text: text.value, signal }), text.value, others.checked);
    } catch (error) {
      if (!signal.aborted) fill(outcome, errorBox(error));
    }
  }

  /** @param {any} planned @param {string} exactly @param {boolean} deletes */
  function showPlan(planned, exactly, deletes) {
    const changes = planned.changes.map((/** @type {any} */ change) =>
      h("div.change", {}, h("p", {}, badge(change.action === "delete" ? "bad" : "neutral", change.action), " ", link(ruleHref(change.domain, change.id), `${change.domain} / ${change.id}`)), diffView(change.diff)),
    );
    if (changes.length === 0) {
      fill(outcome, card("Plan", empty("Nothing would change.", `The text has ${plural(planned.unchanged, "rule")}, already stored in this form.`)));
      return;
    }
    const comment = input({ placeholder: "Why?" });
    const place = h("div");
    const domains = planned.changes.map((/** @type {any} */ change) => change.domain);
    const missing = domains.find((/** @type {string} */ one) => !may("editor", one));
    const apply = h("button.primary", { type: "submit", ...(missing === undefined ? {} : needs("editor", missing)) }, `Apply ${plural(changes.length, "change")}`);
    const form = h("form", {}, field("Comment", comment), h("div.actions", {}, apply), place);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      apply.setAttribute("disabled", "");
      try {
        const address = `/v1/apply?others=${deletes ? "delete" : "keep"}`;
        const done = await call("POST", address, { text: exactly, ifMatch: `"${planned.revision}"`, comment: comment.value });
        sessionStorage.removeItem(draft);
        toast(`${plural(done.changes.length, "change")} applied as revision ${done.revision}.`);
        const links = done.changes.map((/** @type {any} */ change) => h("li", {}, link(ruleHref(change.domain, change.id), `${change.domain} / ${change.id}`)));
        fill(outcome, h("div.notice.good", { role: "status" }, h("b", {}, `Applied as revision ${done.revision}.`), " Connected nodes apply it within a second. Changed rules:", h("ul", {}, ...links)));
      } catch (error) {
        const conflict = error instanceof Problem && error.status === 412;
        fill(place, conflict ? conflictBox(/** @type {Problem} */ (error)) : errorBox(error));
        apply.toggleAttribute("disabled", conflict);
      }
    });
    fill(
      outcome,
      card("Plan", ...changes, ...planned.warnings.map((/** @type {string} */ warning) => h("p.notice.warn", {}, warning)), planned.unchanged > 0 && h("p.muted", {}, `${plural(planned.unchanged, "rule")} unchanged.`), form),
    );
  }

  /** Shows the conflict with another user's change. @param {Problem} problem */
  function conflictBox(problem) {
    const box = errorBox(problem);
    box.append(h("p", {}, "Your text is kept. Plan again to compare it with the current rules."), h("button", { type: "button", onclick: plan }, "Plan again"));
    return box;
  }

  async function begin() {
    const kept = sessionStorage.getItem(draft);
    if (kept !== null) text.value = kept;
    else if (domain) {
      const scope = `domain=${encodeURIComponent(domain)}${rule ? `&rule=${encodeURIComponent(rule)}` : ""}`;
      text.value = (await (await send("GET", `/v1/export?${scope}`, { signal })).text()).replace(/^(#.*\n)+/, "");
    } else text.value = EXAMPLE;
    writeLineNumbers(new Map());
    check();
  }

  text.addEventListener("input", changed);
  text.addEventListener("scroll", scroll);
  begin().catch((error) => signal.aborted || fill(findings, h("p.error", {}, errorText(error))));
  const discard = () => {
    sessionStorage.removeItem(draft);
    begin();
    fill(outcome);
  };
  return h(
    "div",
    {},
    heading("Editor", rule ? badge("neutral", `${domain} / ${rule}`) : domain ? badge("neutral", domain) : null),
    h("div.editor", {}, gutter, text),
    findings,
    h(
      "div.actions",
      {},
      planButton,
      h("button", { type: "button", onclick: discard }, "Discard the draft"),
      h("label.check", { for: "others" }, others, " delete rules of these domains that the text does not contain"),
    ),
    replayForm({ text: () => text.value, deletes: () => others.checked, domain, signal }),
    outcome,
  );
}
