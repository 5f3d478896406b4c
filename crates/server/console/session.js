// The user of the console, and what the role permits. The server enforces this; the console only explains
// what would be refused.

import { call, onUnauthorized, Problem, send } from "./api.js";
import { h } from "./dom.js";

/** @typedef {{name: string, role: string, domains: string[], tokens_required: boolean, version: string}} Session */

const ROLES = ["reader", "node", "operator", "editor", "admin"];

/** Where the rules of this server come from: `database` if it is a rules service. */
export let source = "";

/** @type {Session} */
export let session = { name: "", role: "reader", domains: [], tokens_required: true, version: "" };

/** Whether the reader has a role, in a domain or in all. @param {string} role @param {string} [domain] */
export function may(role, domain) {
  const has = ROLES.indexOf(session.role) >= ROLES.indexOf(role);
  const scoped = session.role !== "admin" && session.domains.length > 0;
  return has && (!scoped || (domain !== undefined && session.domains.includes(domain)));
}

/** Attributes of a control that needs a role. @param {string} role @param {string} [domain] */
export function needs(role, domain) {
  if (may(role, domain)) return {};
  return { disabled: true, title: `This needs the role ${role}; the token “${session.name}” has the role ${session.role}.` };
}

/** Reads the session, after a login if there is none. */
export async function start() {
  onUnauthorized(login);
  const [own, status] = await Promise.all([call("GET", "/v1/session"), call("GET", "/v1/rules-status")]);
  session = own;
  source = status.source;
}

/** @type {Promise<void> | null} */
let open = null;

/** Asks for a token, once even if several calls wait for it. @returns {Promise<void>} */
function login() {
  open ??= ask().finally(() => (open = null));
  return open;
}

/** @returns {Promise<void>} */
function ask() {
  return new Promise((resolve) => {
    const ended = session.name !== "";
    const input = /** @type {HTMLInputElement} */ (
      h("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false" })
    );
    const error = h("p.error", { role: "alert" });
    const button = h("button.primary", { type: "submit" }, "Log in");
    const form = h(
      "form",
      { method: "dialog" },
      h("h2", {}, ended ? "Your session has ended" : "Log in to Tollgate"),
      h("p.muted", {}, ended ? "Log in to go on; nothing on the page is lost." : "The console has the rights of your token."),
      h("label", { for: "token" }, "Token"),
      input,
      error,
      h("div.actions", {}, button),
      h("p.muted.small", {}, "Create one on the server: ", h("code", {}, "tollgate tokens create --role reader --name me")),
    );
    const dialog = /** @type {HTMLDialogElement} */ (h("dialog.login", { "aria-label": "Log in" }, form));
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      button.setAttribute("disabled", "");
      try {
        session = await call("POST", "/v1/session", { json: { token: input.value }, once: true });
        dialog.remove();
        resolve();
        document.dispatchEvent(new CustomEvent("session"));
      } catch (problem) {
        error.textContent = problem instanceof Problem ? problem.message : String(problem);
        button.removeAttribute("disabled");
        input.select();
      }
    });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}

/** Ends the session. */
export async function logout() {
  await send("DELETE", "/v1/session", { once: true }).catch(() => {});
  location.assign("/console");
}
