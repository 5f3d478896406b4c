// The overview page: current rates and problems, and the last hour.

import { count, drawn, fill, get, h, nanos, plural, short, span } from "./base.js";
import { badge, card, empty, heading, link, load, plot, ruleHref, sparkline, table } from "./parts.js";
import { live, onEvent, source, SPARK } from "./server.js";

/** The ranges of the plots: the number of points, and the seconds between them. @type {Record<string, [number, number]>} */
const RANGES = { "5m": [300, 1], "15m": [900, 1], "1h": [360, 10] };

/** @param {import("./parts.js").Page} page */
export function overview({ query, signal, setQuery }) {
  let range = RANGES[query.get("range") ?? ""] ? String(query.get("range")) : "15m";
  const [points, step] = RANGES[range];
  const rates = plot({ label: "Decisions per second", step, points });
  const times = plot({ label: "Decision time", step, points, format: nanos, height: 130 });
  const stats = h("div.stats");
  const busiest = h("div");
  const status = h("div.cards");
  const rulesCard = h("section.card.fact", {}, h("h2", {}, "Rules"));
  const nodesCard = h("section.card.fact", {}, h("h2", {}, "Nodes"));

  const choose = h(
    "div.segmented",
    { role: "group", "aria-label": "Range of the plots" },
    ...Object.keys(RANGES).map((name) =>
      h("button", { type: "button", "aria-pressed": String(name === range), onclick: () => pick(name) }, name.replace("m", " min").replace("h", " h")),
    ),
  );

  /** @param {string} name */
  function pick(name) {
    range = name;
    setQuery({ range: name === "15m" ? null : name });
    [...choose.children].forEach((button, at) => button.setAttribute("aria-pressed", String(Object.keys(RANGES)[at] === name)));
    update();
  }

  function update() {
    const { last } = live;
    const [points, step] = RANGES[range];
    const series = range === "1h" ? live.tens : live.seconds;
    rates.update(
      [
        { name: "admitted", color: "admitted", values: series.admitted },
        { name: "refused", color: "refused", values: series.refused },
        { name: "shadow", color: "shadow", values: series.shadow },
      ],
      step,
      points,
    );
    times.update(
      [
        { name: "mean", color: "admitted", values: series.mean_ns },
        { name: "99th percentile", color: "neutral", values: series.p99_ns },
      ],
      step,
      points,
    );
    if (!last) return;
    fill(
      stats,
      stat("Admitted", short(last.admitted), "/s", "admitted"),
      stat("Refused", short(last.refused), "/s", "refused"),
      stat("Shadow", short(last.shadow), "/s", "shadow", "Requests above a limit that were admitted: by a shadow rule, or in observe mode"),
      stat("Mean time", nanos(last.mean_ns), "", "", "The mean decision time in the last second, including the store"),
    );
    fill(
      status,
      fact("Store", last.store_up ? badge("good", "answers") : badge("bad", "unreachable"), last.store_up ? "Limits are decided with the store." : "The on_fault setting of each rule decides."),
      fact(
        "Enforcement",
        last.mode === "enforce" ? badge("good", "enforcing") : badge("warn", "observing"),
        last.mode === "enforce" ? "Requests above their limits are refused." : "No request is refused.",
      ),
      rulesCard,
      nodesCard,
      fact("Connections", h("b.big", {}, count(last.connections)), `${plural(last.waiting, "request")} waiting to be admitted`),
    );
    showBusiest(last);
  }

  /** @param {any} last */
  function showBusiest(last) {
    const rules = [...last.rules].sort((a, b) => b.admitted + b.refused - a.admitted - a.refused).slice(0, 8);
    if (rules.length === 0) {
      const none = last.rule_count === 0;
      fill(
        busiest,
        none
          ? empty("No rules are in force.", link("/editor", "Write the first rule in the editor"))
          : empty("No decisions in the last second.", link("/rules", `See all ${plural(last.rule_count, "rule")}`)),
      );
      return;
    }
    const rows = rules.map((rule) => [
      link(ruleHref(rule.domain, rule.id), h("span.muted", {}, `${rule.domain} / `), rule.id),
      sparkline(live.rules.get(`${rule.domain}\n${rule.id}`), SPARK),
      short(rule.admitted),
      short(rule.refused),
      short(rule.shadow),
    ]);
    const number = (/** @type {string} */ name) => ({ name, number: true });
    fill(busiest, table("Busiest rules", ["Rule", "Last 10 min", number("Admitted/s"), number("Refused/s"), number("Shadow/s")], rows));
  }

  const read = () => {
    if (signal.aborted) return;
    loadRules(rulesCard, signal);
    if (source === "database") loadNodes(nodesCard, signal);
  };
  if (source !== "database") nodesCard.append(h("p.muted.small", {}, "Nodes report to the rules service."));
  drawn().then(read);
  const timer = setInterval(read, 5_000);
  signal.addEventListener("abort", () => clearInterval(timer));
  onEvent(update, signal);
  update();
  return h(
    "div",
    {},
    heading("Overview", choose),
    stats,
    card("Decisions per second", rates.node),
    card("Decision time", times.node),
    status,
    card("Busiest rules", busiest),
  );
}

/** @param {string} name @param {string} value @param {string} unit @param {string} color @param {string} [title] */
const stat = (name, value, unit, color, title) =>
  h("div.stat", { title }, h("span.stat-name", {}, color && h(`span.key.${color}`), name), h("span.stat-value", {}, value, h("span.unit", {}, unit)));

/** @param {string} title @param {import("./base.js").Child} value @param {...import("./base.js").Child} text */
const fact = (title, value, ...text) => h("section.card.fact", {}, h("h2", {}, title), value, h("p.muted.small", {}, ...text));

/** @param {HTMLElement} place @param {AbortSignal} signal */
function loadRules(place, signal) {
  const show = (/** @type {any} */ status) => [
    h("h2", {}, "Rules"),
    h("b.big", {}, count(status.rules ?? 0)),
    h("p.muted.small", {}, status.revision ? `revision ${status.revision} · ` : "", `from ${status.source}`),
    status.refused && h("p.error", { role: "alert" }, `Revision ${status.refused.revision} was refused: ${status.refused.why}`),
  ];
  load(place, get("/v1/rules-status", signal), show, signal);
}

/** @param {HTMLElement} place @param {AbortSignal} signal */
function loadNodes(place, signal) {
  const show = (/** @type {any[]} */ [nodes, status]) => {
    const behind = nodes.items.filter((/** @type {any} */ node) => node.running !== status.revision || node.refused);
    const text = nodes.items.length === 0 ? "No other node follows this server." : behind.length ? `${behind.length} behind revision ${status.revision}` : "All nodes run the current revision.";
    const silent = Math.max(0, ...nodes.items.map((/** @type {any} */ node) => node.seen_ms_ago));
    return [
      h("h2", {}, "Nodes"),
      h("b.big", {}, count(nodes.items.length)),
      behind.length > 0 && badge("warn", `${behind.length} behind`),
      h("p.muted.small", {}, text, silent > 60_000 ? ` One node was last seen ${span(silent)} ago.` : ""),
    ];
  };
  load(place, Promise.all([get("/v1/nodes", signal), get("/v1/rules-status", signal)]), show, signal);
}
