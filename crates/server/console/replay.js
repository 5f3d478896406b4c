// The replay form: decides the requests of a log by the rules in the editor, before the rules are applied.

import { call, clock, count, fill, h, percent, plural, span } from "./base.js";
import { badge, card, code, empty, errorBox, field, input, plot, table } from "./parts.js";
import { may, needs, session } from "./server.js";

/** Maximum size in bytes of an upload, which contains the log and the rules. */
const MAX_UPLOAD_BYTES = 32 * 1024 * 1024;

/** Maximum number of keys in each list. */
const MAX_KEYS = 10;

/** Maximum number of rules whose keys are listed. */
const MAX_RULES = 6;

/**
 * Creates the form below the editor, with its result.
 * @param {object} options
 * @param {() => string} options.text returns the current text of the editor
 * @param {() => boolean} options.deletes returns whether rules that are missing from the text would be deleted
 * @param {string | null} options.domain
 * @param {AbortSignal} options.signal aborted when the user leaves the page
 */
export function replayForm({ text, deletes, domain, signal }) {
  const file = input({ type: "file", id: "log", required: true, multiple: true });
  const chosen = input({ id: "replay-domain", value: domain ?? "", placeholder: "if the text has several domains" });
  const format = input({ id: "replay-format", placeholder: "detected" });
  const map = input({ id: "replay-map", placeholder: "api_key=http_x_api_key" });
  const set = input({ id: "replay-set", placeholder: "plan=free" });
  const suggest = input({ id: "replay-suggest", placeholder: "client_ip" });
  const zone = input({ id: "replay-zone", placeholder: "UTC" });
  const hashed = input({ type: "checkbox", id: "replay-hashed" });
  const scope = domain ?? session.domains[0];
  const submit = h("button.primary", { type: "submit", ...needs("editor", scope) }, "Replay");
  const stop = h("button", { type: "button", onclick: () => running?.abort(), hidden: true }, "Stop");
  const doing = h("label", { for: "replay-progress" });
  const progress = h("div", { hidden: true }, doing, h("progress", { id: "replay-progress" }));
  const result = h("div", { "aria-live": "polite" });
  /** @type {AbortController | null} */
  let running = null;

  function query() {
    const asked = new URLSearchParams({ others: deletes() ? "delete" : "keep" });
    for (const [name, control] of /** @type {[string, HTMLInputElement][]} */ ([["domain", chosen], ["format", format], ["suggest", suggest], ["zone", zone]])) {
      if (control.value.trim()) asked.set(name, control.value.trim());
    }
    for (const [name, control] of /** @type {[string, HTMLInputElement][]} */ ([["map", map], ["set", set]])) {
      for (const pair of control.value.split(/[\s,]+/).filter(Boolean)) asked.append(name, pair);
    }
    if (hashed.checked) asked.set("hash_keys", "true");
    return asked;
  }

  async function replay() {
    const logs = [...(file.files ?? [])];
    if (logs.length === 0) return;
    const names = logs.length === 1 ? logs[0].name : plural(logs.length, "log");
    const form = new FormData();
    form.append("rules", new Blob([text()], { type: "application/yaml" }), "rules.yaml");
    for (const log of logs) form.append("log", log);
    const started = Date.now();
    const show = () => fill(doing, `Replaying ${names}: ${plural(Math.floor((Date.now() - started) / 1_000), "second")}`);
    const stopped = new AbortController();
    running = stopped;
    const leave = () => stopped.abort();
    signal.addEventListener("abort", leave);
    toggle(true);
    fill(result);
    show();
    const timer = setInterval(show, 1_000);
    try {
      const report = await call("POST", `/v1/replay?${query()}`, { form, signal: stopped.signal });
      if (!signal.aborted) fill(result, ...reportView(report));
    } catch (error) {
      if (!signal.aborted) fill(result, stopped.signal.aborted ? h("p.muted", {}, "The replay was stopped.") : errorBox(error));
    }
    clearInterval(timer);
    signal.removeEventListener("abort", leave);
    running = null;
    toggle(false);
  }

  /** @param {boolean} isRunning */
  function toggle(isRunning) {
    stop.toggleAttribute("hidden", !isRunning);
    progress.toggleAttribute("hidden", !isRunning);
    submit.toggleAttribute("disabled", isRunning || !may("editor", scope));
  }

  const form = h(
    "form",
    {},
    field("Access log", file, "Of nginx, Apache, Envoy, HAProxy or Caddy, JSON lines or CSV; plain or gzip; at most 32 MiB in all. It is not stored."),
    h(
      "details",
      {},
      h("summary", {}, "Format and attributes"),
      h(
        "div.filters",
        {},
        field("Domain", chosen),
        field("Format", format, "combined, envoy, haproxy, json, csv, or a log_format"),
        field("Attributes from fields", map, "attribute=field, separated by spaces"),
        field("Fixed attributes", set, "attribute=value, separated by spaces; the same for all requests"),
        field("Suggest limits per", suggest, "an attribute that identifies a client"),
        field("Time zone", zone, "for times without a zone, such as Europe/Paris"),
        h("label.check", { for: "replay-hashed" }, hashed, " show hashes instead of keys"),
      ),
    ),
    h("div.actions", {}, submit, stop),
    progress,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) return;
    const size = [...(file.files ?? [])].reduce((sum, log) => sum + log.size, text().length);
    if (size > MAX_UPLOAD_BYTES) {
      fill(result, errorBox(new Error(`the log and the rules have ${count(size)} bytes (maximum ${count(MAX_UPLOAD_BYTES)}); compress the log with gzip, send a part of it, or use tollgate replay`)));
      return;
    }
    replay();
  });
  return h("details.card", {}, h("summary", {}, "Replay a log: what would these rules have refused?"), form, result);
}

/** Shows the report of a replay. @param {any} report */
function reportView(report) {
  const run = report.result;
  const [log] = report.logs;
  const missing = [...new Set(report.logs.flatMap((/** @type {any} */ one) => one.missing_attributes))];
  const names = report.logs.length > 1 ? plural(report.logs.length, "log") : `${log?.name} (${log?.format})`;
  const notes = [
    ...report.errors.map((/** @type {string} */ error) => h("p.notice.warn", {}, error)),
    ...report.problems.map((/** @type {any} */ problem) => h("p.notice.warn", {}, `${plural(problem.lines, "line")} ${problem.description}`, problem.first ? `; the first is ${problem.first}` : "")),
    missing.length > 0 && h("p.notice.warn", {}, `The log does not have ${missing.join(", ")}, which rules read. Name the fields under Format and attributes.`),
    run?.overflowed > 0 && h("p.notice.warn", {}, "Not exact: the log has more keys than a replay can hold, so some keys share a counter."),
  ];
  if (!run || run.requests === 0) return [...notes, empty("No request was decided.", "The log has no line that can be used.")];
  return [
    ...notes,
    h(
      "p",
      { role: "status" },
      badge(run.refused ? "bad" : "good", `${percent(run.refused, run.requests)} refused`),
      ` ${count(run.refused)} of ${plural(run.requests, "request")} in ${span(report.last_ms - report.first_ms)} of ${names}`,
      run.shadow_refused > 0 && `; ${count(run.shadow_refused)} more by shadow rules`,
      ".",
      report.at_once && h("span.muted", {}, ` The log has whole seconds. If all requests of a second arrived at its start, ${count(report.at_once.refused)} would be refused.`),
    ),
    timeline(run.timeline),
    card("Rules", rules(run.rules)),
    topKeys(run.rules),
    report.against ? comparison(report.against) : h("p.muted", {}, "No rule of this domain is in force now, so there is nothing to compare with."),
    report.suggestion && suggestion(report.suggestion),
  ];
}

/** @param {any} found */
function suggestion(found) {
  const number = (/** @type {string} */ name) => ({ name, number: true });
  // If timestamps are in whole seconds, there are two results: one with the requests spread over each second, and one
  // with all requests at the start of their second.
  const both = (/** @type {number} */ spread, /** @type {number | undefined} */ once) => (once === undefined || once === spread ? count(spread) : `${count(spread)} – ${count(once)}`);
  const rows = found.candidates.map((/** @type {any} */ limit, /** @type {number} */ at) => [
    [h("code", {}, limit.limit), at === found.recommended && [" ", badge("good", "lowest maximum per minute")]].flat(),
    count(limit.burst),
    count(limit.per_minute),
    both(limit.refused, limit.at_once?.refused),
    both(limit.clients_refused, limit.at_once?.clients_refused),
  ]);
  const peaks = found.peaks.map((/** @type {any} */ peak) => [peak.interval, count(peak.half), count(peak.most), count(peak.nearly_all), count(peak.max)]);
  return card(
    `Limits that 99.9 % of ${plural(found.clients, "client")} never notice`,
    table("The most requests of a client", ["Most requests in a", number("50 % of clients"), number("99 %"), number("99.9 %"), number("Busiest client")], peaks),
    table("Suggested limits", ["Limit", number("Burst"), number("Maximum per minute"), number("Requests refused"), number("Clients refused")], rows),
    code(found.rules),
  );
}

/** @param {any} found */
function timeline(found) {
  const { node, update } = plot({ label: "Requests of the log", step: found.column_ms / 1_000, points: Math.max(2, found.admitted.length), start: found.start_ms, height: 150 });
  update([
    { name: "admitted", color: "admitted", values: found.admitted },
    { name: "refused", color: "refused", values: found.refused },
    { name: "shadow", color: "shadow", values: found.shadow_refused },
  ]);
  return card(`Requests in ${span(found.column_ms)}, from ${clock(found.start_ms)} UTC`, node);
}

/** @param {any[]} found */
function rules(found) {
  const number = (/** @type {string} */ name) => ({ name, number: true });
  return table(
    "What each rule would have done",
    ["Rule", number("Matched"), number("Refused"), number("Shadow"), number("Keys refused"), number("Longest refusal")],
    found.map((rule) => [
      [h("code", {}, rule.rule), rule.is_shadow && [" ", badge("warn", "shadow")]].flat(),
      count(rule.matched),
      count(rule.refused),
      count(rule.shadow_refused),
      `${rule.has_more_keys_refused ? "≥ " : ""}${count(rule.keys_refused)} of ${count(rule.keys)}`,
      rule.longest_refusal_ms ? span(rule.longest_refusal_ms) : "–",
    ]),
  );
}

/** @param {string} title @param {string} what @param {any[]} top */
const keyTable = (title, what, top) =>
  table(title, ["Key", { name: what, number: true }], top.slice(0, MAX_KEYS).map((key) => [h("code", {}, key.key || "all requests"), `${key.error ? "≈ " : ""}${count(key.count)}`]));

/** Lists the keys that each rule refused most, or charged most if it refused none. @param {any[]} found */
function topKeys(found) {
  const listed = found.filter((rule) => rule.top_refused.length + rule.top_charged.length > 0).slice(0, MAX_RULES);
  const one = (/** @type {any} */ rule) => {
    const refused = rule.top_refused.length > 0;
    const title = `${refused ? "Most refused" : "Most charged"} by ${rule.rule}`;
    return card(title, keyTable(title, refused ? "Refused" : "Charged", refused ? rule.top_refused : rule.top_charged));
  };
  return listed.length > 0 && h("details", {}, h("summary", {}, "Heaviest keys of each rule"), h("div.columns", {}, ...listed.map(one)));
}

/** @param {any} found */
function comparison(found) {
  const side = (/** @type {string} */ title, /** @type {number} */ requests, /** @type {number} */ keys, /** @type {any[]} */ top) =>
    card(
      `${title}: ${plural(requests, "request")} of ${plural(keys, "key")}`,
      top.length ? keyTable(title, "Requests", top) : h("p.muted", {}, requests ? "No key stands out." : "None."),
    );
  return h(
    "div",
    {},
    h("p.muted", {}, `Compared with the rules in force, which would have refused ${count(found.refused_before)}:`),
    h(
      "div.columns",
      {},
      side("Newly refused", found.newly_refused, found.newly_refused_keys, found.newly_refused_top),
      side("No longer refused", found.relieved, found.relieved_keys, found.relieved_top),
    ),
  );
}
