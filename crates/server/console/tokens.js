// The tokens page: name, role, domains and expiry of each token. A new token is shown only once.

import { call, get, h, time } from "./base.js";
import { badge, confirm, empty, field, heading, input, load, select, table, toast, when } from "./parts.js";
import { needs, source } from "./server.js";

/** @param {import("./parts.js").Page} page */
export function tokens({ signal }) {
  if (source !== "database") return h("div", {}, heading("Tokens"), empty("Tokens are kept by the rules service.", `The rules of this server come from ${source}.`));
  const list = h("div");
  const read = () => load(list, get("/v1/tokens?limit=1000", signal), (page) => rows(page, read), signal);
  read();
  return h("div", {}, heading("Tokens", h("button.primary", { type: "button", onclick: () => create(read), ...needs("admin") }, "Create a token")), list);
}

/** @param {any} page @param {() => void} read */
function rows(page, read) {
  if (page.items.length === 0) {
    return empty("There are no tokens.", "A server that other machines can reach requires tokens. Create one for each program and person.");
  }
  const state = (/** @type {any} */ token) => {
    if (token.revoked_ms) return badge("neutral", "revoked");
    if (token.expires_ms && token.expires_ms < Date.now()) return badge("warn", "expired");
    return badge("good", "valid");
  };
  const list = page.items.map((/** @type {any} */ token) => [
    [h("b", {}, token.name), h("span.muted.small", {}, ` ${token.id}`)],
    token.role,
    token.domains?.join(", ") || h("span.muted", {}, "all"),
    state(token),
    when(token.created_ms),
    token.expires_ms ? time(token.expires_ms) : h("span.muted", {}, "never"),
    token.revoked_ms ? "" : h("button.small", { type: "button", onclick: () => revoke(token, read) }, "Revoke"),
  ]);
  return table("Tokens", ["Token", "Role", "Domains", "State", "Created", "Expires", ""], list);
}

/** @param {any} token @param {() => void} read */
function revoke(token, read) {
  confirm({
    title: `Revoke the token of ${token.name}?`,
    text: h("p", {}, "Connected nodes refuse it within a second. Other nodes refuse it when they reach the rules service again. A revoked token cannot be restored."),
    button: "Revoke",
    danger: true,
    act: async () => {
      await call("DELETE", `/v1/tokens/${encodeURIComponent(token.id)}`);
      toast("The token is revoked.");
      read();
    },
  });
}

/** @param {() => void} read */
function create(read) {
  const name = input({ required: true, placeholder: "deploy pipeline" });
  const role = select(["reader", "node", "operator", "editor", "admin"], "reader");
  const domains = input({ placeholder: "all domains" });
  const days = select(["30 days", "90 days", "1 year", "never"], "90 days");
  const lengths = [30, 90, 365];
  confirm({
    title: "Create a token",
    text: h("p.muted", {}, "The token name is recorded as the author of its changes."),
    fields: [field("Name", name), field("Role", role), field("Domains", domains, "Separated by commas"), field("Expires", days)],
    button: "Create",
    act: async () => {
      const length = lengths[days.selectedIndex];
      const list = domains.value.split(",").map((domain) => domain.trim()).filter(Boolean);
      const json = {
        name: name.value.trim(),
        role: role.value,
        ...(list.length ? { domains: list } : {}),
        ...(length ? { expires_ms: Date.now() + length * 86_400_000 } : {}),
      };
      const made = await call("POST", "/v1/tokens", { json });
      read();
      showSecret(made);
    },
  });
}

/** @param {any} made */
function showSecret(made) {
  const secret = input({ value: made.token, readonly: true, onfocus: () => secret.select() });
  confirm({
    title: `The token of ${made.name}`,
    text: h("p", {}, "Copy it now: it is shown only once. Send it as ", h("code", {}, "Authorization: Bearer …"), "."),
    fields: field("Token", secret),
    button: "I have copied it",
    act: async () => {},
  });
}
