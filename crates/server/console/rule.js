// The page of one rule: traffic, YAML, overrides and history.

import { call, count, fill, get, h, plural, rulePath, send } from "./base.js";
import { keyRow } from "./keys.js";
import { badge, card, code, confirm, diffView, empty, errorBox, field, heading, input, link, load, plot, ruleHref, table, tabs, toast, when } from "./parts.js";
import { stateBadge } from "./rules.js";
import { live, needs, onEvent, source, TRACKED } from "./server.js";

/** @typedef {import("./parts.js").Page} Page */

const TABS = /** @type {Record<string, (rule: Rule) => HTMLElement>} */ ({
  Traffic: traffic,
  YAML: yaml,
  Overrides: overrides,
  History: versions,
});

/**
 * @typedef {object} Rule
 * @property {string} domain
 * @property {string} id
 * @property {any} stored the rule in the database; null if this server has no database
 * @property {Page} page
 * @property {() => void} reload
 */

/** @param {Page} page */
export function rule(page) {
  const [domain, id] = page.parts;
  const tab = Object.keys(TABS).find((name) => name.toLowerCase() === page.query.get("tab")) ?? "Traffic";
  const body = h("div");
  const state = h("span");
  const actions = h("span.actions");

  async function reload() {
    const [found] = (await get(`/v1/rules?${new URLSearchParams({ domain, rule: id })}`, page.signal)).items;
    // Only a server with a database is a rules service.
    const stored = source === "database" ? await get(rulePath(domain, id), page.signal) : null;
    if (page.signal.aborted) return;
    if (!stored && !found) {
      fill(body, empty(`There is no rule ${id} in the domain ${domain}.`, link("/rules", "See all rules")));
      return;
    }
    fill(state, stateBadge({ disabled: stored && !stored.enabled, shadow: found?.shadow }));
    fill(actions, ...(stored ? buttons({ domain, id, stored, page, reload }) : []));
    fill(body, TABS[tab]({ domain, id, stored, page, reload }));
  }

  reload().catch((error) => page.signal.aborted || fill(body, errorBox(error)));
  const href = (/** @type {string} */ name) => `/console${ruleHref(domain, id)}${name === "Traffic" ? "" : `?tab=${name.toLowerCase()}`}`;
  return h(
    "div",
    {},
    h("p.crumbs", {}, link("/rules", "Rules"), " / ", link(`/rules?q=${encodeURIComponent(domain)}`, domain)),
    heading(id, state, actions),
    tabs("Parts of the rule", Object.keys(TABS).map((name) => ({ name, href: href(name), open: name === tab }))),
    body,
  );
}

/** @param {Rule} rule */
function buttons({ domain, id, stored, reload }) {
  const verb = stored.enabled ? "disable" : "enable";
  const comment = input({ id: "comment" });
  const ask = () =>
    confirm({
      title: stored.enabled ? "Disable this rule?" : "Enable this rule?",
      text: h("p", {}, stored.enabled ? "Nodes will no longer receive the rule, and its limits will not apply." : "Nodes will receive the rule again, and its limits will apply."),
      fields: field("Comment", comment),
      button: stored.enabled ? "Disable" : "Enable",
      danger: stored.enabled,
      act: async () => {
        await call("POST", rulePath(domain, id, verb), { ifMatch: `"${stored.version}"`, comment: comment.value });
        toast(`The rule is ${verb}d.`);
        reload();
      },
    });
  return [
    link(`/editor?${new URLSearchParams({ domain, rule: id })}`, "Edit"),
    h("button", { type: "button", onclick: ask, ...needs("editor", domain) }, stored.enabled ? "Disable" : "Enable"),
  ];
}

/** @param {Rule} rule */
function traffic({ domain, id, page }) {
  const query = `domain=${encodeURIComponent(domain)}&rule=${encodeURIComponent(id)}`;
  const fine = plot({ label: "Decisions per second by this rule", step: 1, points: 900 });
  const coarse = plot({ label: "Decisions per second by this rule, last hour", step: 10, points: 360, height: 130 });
  const place = h("div", {}, h("p.muted", {}, "Loading…"));
  const top = h("div");
  /** @type {any} */
  let history = null;

  const lines = (/** @type {any} */ series) => [
    { name: "admitted", color: "admitted", values: series.admitted },
    { name: "refused", color: "refused", values: series.refused },
    { name: "shadow", color: "shadow", values: series.shadow },
  ];
  const draw = () => {
    fine.update(lines(history.seconds));
    coarse.update(lines(history.tens));
  };
  const read = async () => {
    try {
      history = await get(`/v1/history?${query}`, page.signal);
      if (page.signal.aborted) return;
      if (!history.kept) fill(place, empty("No traffic to plot.", `Plots are kept for the ${TRACKED} busiest rules in force.`));
      else if (!fine.node.isConnected) fill(place, card("The last 15 minutes", fine.node), card("The last hour", coarse.node));
      draw();
    } catch (error) {
      if (!page.signal.aborted) fill(place, errorBox(error));
    }
  };
  let events = 0;
  onEvent(() => {
    const now = live.last?.rules.find((/** @type {any} */ rule) => rule.domain === domain && rule.id === id);
    if (history && !live.lost) {
      for (const column of ["admitted", "refused", "shadow"]) {
        history.seconds[column].push(now?.[column] ?? 0);
        if (history.seconds[column].length > 900) history.seconds[column].shift();
      }
      draw();
    }
    if (++events % 10 === 0) {
      read();
      readTop();
    }
  }, page.signal);
  const readTop = () => load(top, get("/v1/top", page.signal), (all) => topKeys(all, domain, id), page.signal);
  read();
  readTop();
  return h("div", {}, place, top);
}

/** @param {any} all @param {string} domain @param {string} id */
function topKeys(all, domain, id) {
  const found = all.rules.find((/** @type {any} */ rule) => rule.domain === domain && rule.rule === id);
  const list = (/** @type {any[]} */ keys) => keys.slice(0, 10).map((key) => keyRow(domain, key));
  const side = (/** @type {string} */ title, /** @type {any[]} */ keys, /** @type {string} */ column) =>
    card(title, keys.length ? table(title, ["Key", { name: column, number: true }], list(keys)) : h("p.muted", {}, "None recently."));
  return h("div.columns", {}, side("Charged most", found?.charged ?? [], "Charged"), side("Refused most", found?.refused ?? [], "Refused"));
}

/** @param {Rule} rule */
function yaml({ domain, id, stored, page }) {
  const place = h("div", {}, h("p.muted", {}, "Loading…"));
  if (!stored) return elsewhere();
  const text = send("GET", `/v1/export?domain=${encodeURIComponent(domain)}&rule=${encodeURIComponent(id)}`, { signal: page.signal });
  load(place, text.then((response) => response.text()), code, page.signal);
  return place;
}

const elsewhere = () =>
  empty("The text of the rule is not on this server.", "The rules come from a file or from another server, which the overview page names. See the rule there, or use POST /v1/explain.");

/** @param {Rule} rule */
function overrides({ domain, id, stored, page, reload }) {
  if (!stored) return elsewhere();
  const place = h("div");
  const remove = (/** @type {any} */ override) =>
    confirm({
      title: "Delete this override?",
      text: h("p", {}, "The limits of the rule apply again to ", h("code", {}, override.value), "."),
      button: "Delete",
      danger: true,
      act: async () => {
        await call("DELETE", rulePath(domain, id, "overrides", override.value), { ifMatch: `"${override.version}"` });
        toast("The override is deleted.");
        reload();
      },
    });
  load(
    place,
    get(`${rulePath(domain, id, "overrides")}?limit=1000`, page.signal),
    (list) =>
      list.items.length === 0
        ? empty("No separate overrides.", "An override sets other limits for some requests, on the same counter. Overrides in the text of the rule are under YAML.")
        : table(
            "Overrides",
            ["Value", "Attribute", "Effect", "Until", "By", ""],
            list.items.map((/** @type {any} */ override) => [
              h("code", {}, override.value),
              override.attribute,
              h("code", {}, JSON.stringify(override.effect)),
              override.until ?? h("span.muted", {}, "no end"),
              [override.author ?? "", " ", when(override.at_ms)],
              h("button.small", { type: "button", onclick: () => remove(override), ...needs("operator", domain) }, "Delete"),
            ]),
          ),
    page.signal,
  );
  return place;
}

/** @param {Rule} rule */
function versions({ domain, id, stored, page, reload }) {
  if (!stored) return elsewhere();
  const place = h("div");
  const shown = h("div");
  const diff = (/** @type {number} */ version) => {
    page.setQuery({ version: String(version) });
    const text = send("GET", `${rulePath(domain, id, "diff")}?from=${version - 1}&to=${version}`, { signal: page.signal });
    load(shown, text.then((response) => response.text()), (lines) => card(`Changes in version ${version}`, diffView(lines || " (the text did not change)")), page.signal);
  };
  const rollBack = (/** @type {any} */ version) => {
    const comment = input({ id: "comment" });
    confirm({
      title: `Roll back to version ${version.version}?`,
      text: h("p", {}, "This creates a new version with the same text and puts it in force."),
      fields: field("Comment", comment),
      button: "Roll back",
      act: async () => {
        await call("POST", rulePath(domain, id, "rollback"), { json: { version: version.version }, ifMatch: `"${stored.version}"`, comment: comment.value });
        toast(`Version ${version.version} is in force again.`);
        reload();
      },
    });
  };
  load(
    place,
    get(`${rulePath(domain, id, "versions")}?limit=100`, page.signal),
    (list) =>
      table(
        plural(list.items.length, "version"),
        ["Version", "Action", "By", "When", "Comment", ""],
        list.items.map((/** @type {any} */ version) => [
          count(version.version),
          version.action,
          version.author ?? "",
          when(version.at_ms),
          version.comment ?? "",
          [
            h("button.small", { type: "button", onclick: () => diff(version.version) }, "Changes"),
            version.version === stored.version
              ? badge("good", "current")
              : h("button.small", { type: "button", onclick: () => rollBack(version), ...(version.rule ? needs("editor", domain) : { disabled: true }) }, "Roll back"),
          ],
        ]),
      ),
    page.signal,
  );
  const chosen = Number(page.query.get("version"));
  if (chosen > 0) diff(chosen);
  return h("div", {}, place, shown);
}
