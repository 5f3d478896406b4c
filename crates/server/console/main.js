// The frame around every page: navigation, server state, kill switch, and routing by URL.

import { call, drawn, fill, h } from "./base.js";
import { overview } from "./overview.js";
import { confirm, empty, errorBox, heading, link, toast } from "./parts.js";
import { follow, live, logout, may, needs, onEvent, session, start } from "./server.js";

/** @typedef {import("./parts.js").Page} Page */

/** The pages. Pressing `g` and then `key` opens a page. @type {{path: string, name: string, key: string, role?: string}[]} */
const PAGES = [
  { path: "", name: "Overview", key: "o" },
  { path: "rules", name: "Rules", key: "r" },
  { path: "editor", name: "Editor", key: "e" },
  { path: "try", name: "Try", key: "t" },
  { path: "keys", name: "Keys", key: "k" },
  { path: "nodes", name: "Nodes", key: "n" },
  { path: "audit", name: "Audit", key: "a", role: "operator" },
  { path: "tokens", name: "Tokens", key: "s", role: "admin" },
];

/** The frame is shown without data if the first data has not arrived after this time in milliseconds. */
const FIRST_DATA_TIMEOUT_MS = 50;

/** Below this width in pixels, the page names may not fit in one line. */
const NARROW_PX = 800;

/** @typedef {(page: Page) => HTMLElement} Render */

/** Loads the code of a page on demand. The overview is always loaded, because most users see it first. @type {Record<string, (parts: string[]) => Render | Promise<Render>>} */
const RENDER = {
  "": () => overview,
  rules: async (parts) => (parts.length >= 2 ? (await import("./rule.js")).rule : (await import("./rules.js")).rules),
  editor: async () => (await import("./editor.js")).editor,
  try: async () => (await import("./try.js")).tryPage,
  keys: async () => (await import("./keys.js")).keys,
  nodes: async () => (await import("./nodes.js")).nodes,
  audit: async () => (await import("./audit.js")).audit,
  tokens: async () => (await import("./tokens.js")).tokens,
};

const user = h("div.user");
const main = h("main", { id: "main", tabindex: "-1" });
const banners = h("div.banners", { role: "status", "aria-live": "polite" });
const navigation = h("nav.pages", { "aria-label": "Pages" });
const state = h("div.state");
let leaving = new AbortController();

/** Shows the page for the current URL. */
async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const url = new URL(location.href);
  const [name = "", ...parts] = url.pathname.split("/").slice(2).map(decode);
  const known = PAGES.find((page) => page.path === name);
  const page = { parts: parts.filter((part) => part !== ""), query: url.searchParams, signal, setQuery };
  document.title = known ? `${known.name} · Tollgate` : "Tollgate";
  showNavigation();
  try {
    let render = known ? RENDER[known.path](page.parts) : () => nothing(url.pathname);
    // The overview is not awaited, because `await` would show an empty page first.
    if (render instanceof Promise) render = await render;
    // The user may have opened another page while the code was loading.
    if (!signal.aborted) fill(main, render(page));
  } catch (error) {
    if (!signal.aborted) fill(main, heading("Error"), errorBox(error));
  }
}

/** Shows links to the pages that the user may open. */
function showNavigation() {
  const [, , open = ""] = location.pathname.split("/");
  fill(
    navigation,
    ...PAGES.filter(({ role }) => !role || may(role)).map(({ path, name }) =>
      h("a", { href: `/console${path && `/${path}`}`, "aria-current": path === open ? "page" : null }, name),
    ),
  );
  // A narrow screen shows only part of the list.
  if (innerWidth < NARROW_PX) navigation.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

/** Shows the name and role of the user. */
function showUser() {
  fill(
    user,
    h("span", {}, session.name, h("span.muted", {}, ` · ${session.role}`)),
    session.tokens_required && h("button.plain", { type: "button", onclick: logout }, "Log out"),
  );
}

/** @param {string} part */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** @param {string} path */
const nothing = (path) => h("div", {}, heading("No such page"), empty(`There is no page ${path}.`, link("", "Go to the overview")));

/** @param {Record<string, string | null>} changes */
function setQuery(changes) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  history.replaceState(null, "", url);
}

/** Opens a page of the console by its URL. @param {string} path */
export async function navigate(path) {
  history.pushState(null, "", path);
  await show();
  scrollTo(0, 0);
  /** @type {HTMLElement | null} */ (main.querySelector("h1"))?.focus();
}

/** Shows the server state and warnings. */
function showState() {
  const { last, lost } = live;
  const notices = [];
  if (lost) notices.push(["warn", `No live data: ${lost}`]);
  if (last && !last.store_up) notices.push(["bad", "Deciding by fallback: the store is unreachable, so the on_fault setting of each rule decides."]);
  else if (last?.fallback > 0) notices.push(["bad", "Deciding by fallback: some requests were decided without the store in the last second."]);
  if (last?.mode === "observe") notices.push(["warn", "Observing: refusals are counted and reported, but every request is admitted."]);
  if (last?.rules_stale) notices.push(["warn", "Stale rules: the rules service is unreachable, so the last loaded rules stay in force."]);
  const text = notices.map(([, notice]) => notice).join("\n");
  if (banners.dataset.text !== text) {
    banners.dataset.text = text;
    fill(banners, ...notices.map(([kind, notice]) => h(`p.banner.${kind}`, {}, notice)));
  }
  const mode = last?.mode ?? "";
  if (state.dataset.mode !== mode) {
    state.dataset.mode = mode;
    fill(state, killSwitch(mode));
  }
}

/** @param {string} mode */
function killSwitch(mode) {
  if (!mode) return h("span.muted", {}, "Connecting…");
  const enforcing = mode === "enforce";
  const next = enforcing ? "observe" : "enforce";
  const act = async () => {
    await call("POST", "/v1/enforcement", { json: { mode: next } });
    toast(enforcing ? "This server only observes; no request is refused." : "This server enforces its rules.");
  };
  const ask = () =>
    confirm({
      title: enforcing ? "Stop refusing requests?" : "Refuse requests again?",
      text: h(
        "p",
        {},
        enforcing
          ? "This server will admit every request and only report what it would refuse. Other servers are not affected."
          : "This server will refuse requests above their limits again.",
      ),
      button: enforcing ? "Observe" : "Enforce",
      word: next,
      danger: enforcing,
      act,
    });
  return h(
    "button.switch",
    { type: "button", onclick: ask, ...needs("operator") },
    h(`span.lamp.${enforcing ? "good" : "warn"}`),
    enforcing ? "Enforcing" : "Observing",
    h("span.muted", {}, enforcing ? " · kill switch" : " · enforce again"),
  );
}

function help() {
  const keys = [...PAGES.map((page) => [`g ${page.key}`, page.name]), ["/", "Search on the page"], ["k", "Kill switch"], ["?", "This list"]];
  confirm({
    title: "Keyboard shortcuts",
    text: h("dl.keys", {}, ...keys.flatMap(([key, what]) => [h("dt", {}, ...key.split(" ").map((part) => h("kbd", {}, part))), h("dd", {}, what)])),
    button: "Close",
    act: async () => {},
  });
}

let afterG = false;

/** @param {KeyboardEvent} event */
function onKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, dialog")) return;
  const page = afterG && PAGES.find((page) => page.key === event.key);
  afterG = event.key === "g";
  if (page) navigate(`/console${page.path && `/${page.path}`}`);
  else if (event.key === "/") /** @type {HTMLElement | null} */ (main.querySelector("input[type=search], input"))?.focus();
  else if (event.key === "k") state.querySelector("button")?.click();
  else if (event.key === "?") help();
  else return;
  event.preventDefault();
}

/** Opens links within the console without reloading the document. @param {MouseEvent} event */
function onClick(event) {
  const anchor = /** @type {HTMLElement} */ (event.target).closest("a");
  if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0 || anchor.target) return;
  const url = new URL(anchor.href);
  if (url.origin !== location.origin || !/^\/console(\/|$)/.test(url.pathname)) return;
  event.preventDefault();
  navigate(url.pathname + url.search);
}

async function begin() {
  const started = start();
  follow();
  // Data that arrives soon is shown in the first frame, because drawing an empty frame first would delay the
  // data.
  await Promise.race([Promise.all([started, firstData()]), new Promise((resolve) => setTimeout(resolve, FIRST_DATA_TIMEOUT_MS))]);
  document.body.append(
    h("a.skip", { href: "#main", onclick: () => main.focus() }, "Skip to the content"),
    h(
      "header.bar",
      {},
      h("a.brand", { href: "/console" }, "Tollgate"),
      navigation,
      h("div.side", {}, state, user, h("button.plain", { type: "button", onclick: help, title: "Keyboard shortcuts", "aria-label": "Keyboard shortcuts" }, "?")),
    ),
    h("div.content", {}, banners, main),
  );
  showNavigation();
  await started;
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
  // Another user may have logged in. The page keeps its contents.
  document.addEventListener("session", () => {
    showUser();
    showNavigation();
    state.dataset.mode = "-";
    showState();
  });
  addEventListener("popstate", show);
  onEvent(showState, new AbortController().signal);
  showUser();
  show();
  showState();
  // Marks the first frame with data, for measurements.
  await firstData();
  await drawn();
  performance.mark("console-shown");
}

/** Waits until live data has arrived. @returns {Promise<void>} */
function firstData() {
  return new Promise((resolve) => {
    const first = new AbortController();
    const check = () => {
      if (!live.last) return;
      first.abort();
      resolve();
    };
    onEvent(check, first.signal);
    check();
  });
}

begin().catch((error) => fill(document.body, h("main", {}, h("h1", {}, "Tollgate"), errorBox(error))));
