// The nodes page: the servers that follow this one, and their revisions.

import { get, h, plural, span } from "./base.js";
import { badge, card, empty, heading, load, table } from "./parts.js";
import { session, source } from "./server.js";

/** @param {import("./parts.js").Page} page */
export function nodes({ signal }) {
  const own = h("div");
  const list = h("div");
  const read = () => {
    load(own, get("/v1/rules-status", signal), ownStatus, signal);
    if (source === "database") load(list, Promise.all([get("/v1/nodes", signal), get("/v1/rules-status", signal)]), rows, signal);
  };
  read();
  const timer = setInterval(read, 2_000);
  signal.addEventListener("abort", () => clearInterval(timer));
  const elsewhere = empty("Nodes report to the rules service.", `The rules of this server come from ${source}.`);
  return h("div", {}, heading("Nodes"), card("This server", own), card("Servers that follow this one", source === "database" ? list : elsewhere));
}

/** @param {any} status */
function ownStatus(status) {
  const facts = [
    ["Version", session.version],
    ["Rules from", status.source],
    ["Revision", status.revision ?? "none"],
    ["In force for", status.loaded_ms_ago === undefined ? "–" : span(status.loaded_ms_ago)],
    ["Rules", `${plural(status.rules ?? 0, "rule")} in ${plural(status.domains ?? 0, "domain")}, with ${plural(status.overrides ?? 0, "override")}`],
  ];
  return [
    h("dl.facts", {}, ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    status.refused && h("p.error", { role: "alert" }, `Revision ${status.refused.revision} was refused: ${status.refused.why}`),
  ];
}

/** @param {any[]} read */
function rows([nodes, status]) {
  if (nodes.items.length === 0) {
    return empty("No other server follows this one.", "Start one with ", h("code", {}, `TOLLGATE_RULES_TOKEN=… tollgate serve --rules ${location.origin}`), ".");
  }
  const state = (/** @type {any} */ node) => {
    if (node.refused) return [badge("bad", `refused ${node.refused.revision}`), " ", node.refused.why];
    if (node.running !== status.revision) return badge("warn", "behind");
    return badge("good", "current");
  };
  const list = nodes.items.map((/** @type {any} */ node) => [node.node, node.running ?? "none", state(node), `${span(node.seen_ms_ago)} ago`]);
  return table("Nodes", ["Node", { name: "Revision", number: true }, "State", { name: "Last seen", number: true }], list);
}
