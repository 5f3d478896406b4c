// Drives every page of the console with every role. `console.rs` starts this program with the address and the tokens:
//
//   node console.mjs ORIGIN '{"reader": "tg_…", …}' ALONE
//
// ALONE is the address of a server without tokens, with rules from a file and an unreachable store.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { problems, Window, withBrowser } from "./browser.mjs";

const [, , origin, tokens, alone] = process.argv;
const TOKENS = JSON.parse(tokens);

/** Markup that pages must show as plain text. `console.rs` puts this markup into a key, a comment and an override. */
const MARKUP = "<img src=x onerror=alert(1)>";

/** The pages: address, heading, a text that the complete page shows, and the required role. */
const PAGES = [
  ["", "Overview", "Busiest rules"],
  ["/rules", "Rules", "per-client"],
  ["/rules?q=login", "Rules", "1 rule found"],
  ["/rules?q=nothing", "Rules", "No rule matches"],
  ["/rules?state=disabled", "Rules", "old"],
  ["/rules/api/per-client", "per-client", "Charged most"],
  ["/rules/api/per-client?tab=yaml", "per-client", "limit: 100/s"],
  ["/rules/api/per-client?tab=overrides", "per-client", MARKUP],
  ["/rules/api/per-client?tab=history&version=2", "per-client", MARKUP],
  ["/editor?domain=api&rule=login", "Editor", "valid"],
  [`/try?domain=api&with=${encodeURIComponent('[["path","/v1/search"],["api_key","acme"]]')}`, "Try a request", "of 3 rules of the domain match"],
  [`/keys?domain=api&with=${encodeURIComponent('[["path","/login"],["client_ip","192.0.2.1"]]')}`, "Keys", "would be"],
  ["/keys?q=img", "Keys", MARKUP],
  ["/nodes", "Nodes", "edge-1"],
  ["/audit", "Audit", MARKUP, "operator"],
  ["/tokens", "Tokens", "Revoke", "admin"],
  ["/nowhere", "No such page", "Go to the overview"],
];

const RANK = ["reader", "node", "operator", "editor", "admin"];
/** Returns whether a role has at least the rights of another role. */
const has = (role, needed) => RANK.indexOf(role) >= RANK.indexOf(needed);

/** Half an hour of access log: page visitors, and one client that tries to log in every other second for ten minutes. */
function accessLog(path = "/v1/items") {
  const lines = [];
  const line = (second, client, request) => {
    const time = new Date(Date.UTC(2025, 10, 16, 9, 0, second)).toISOString();
    lines.push(`10.0.${client >> 8}.${client & 255} - - [16/Nov/2025:${time.slice(11, 19)} +0000] "${request} HTTP/1.1" 200 5 "-" "curl/8"\n`);
  };
  for (let second = 0; second < 1800; second++) {
    const visitors = 1 + Math.round(2 + 2 * Math.sin(second / 150));
    for (let visitor = 0; visitor < visitors; visitor++) line(second, (second * 7 + visitor * 131) % 900, `GET ${path}`);
    if (second >= 600 && second < 1200 && second % 2 === 0) line(second, 65_000, "POST /login");
  }
  return Buffer.from(lines.join(""));
}

/** Opens the editor with a change, selects a log by keyboard, and replays it. */
async function replayLog(window, name, buffer) {
  // Register the handler before the file dialog opens.
  const chooser = window.page.waitForEvent("filechooser", { timeout: 120_000 });
  await window.go("/editor?domain=api&rule=login", "Editor");
  await window.see("valid");
  const text = window.page.locator("textarea");
  await text.fill((await text.inputValue()).replace(/\d+\/m/, "2/m") + "- { id: pages, per: [path], limit: 4/s, burst: 20, on_exceed: shadow }\n");
  await window.see("valid");
  await text.press("Tab");
  await window.tabTo("details.card > summary");
  await window.press("Enter");
  await window.tabTo("#log");
  await window.press("Enter");
  await (await chooser).setFiles({ name, mimeType: "application/octet-stream", buffer });
  await window.tabTo("details.card form > .actions button");
  await window.press("Enter");
}

/** Replays a log in the editor to show the effect of a change before it is applied. */
async function replaying(browser) {
  const window = await Window.open(browser, origin);
  await window.logIn(TOKENS.editor);
  await replayLog(window, `${MARKUP}.log.gz`, gzipSync(accessLog(`/v1/${MARKUP}`)));
  await window.see("Compared with the rules in force, which would have refused");
  const page = window.page;
  const row = (rule) => page.getByLabel("What each rule would have done").locator("tr", { hasText: rule });
  const cells = await row("login").locator("td").allInnerTexts();
  assert.deepEqual(cells.slice(0, 4), ["login", "300", "280", "0"], "two of each minute pass");
  const shadow = await row("pages").locator("td").allInnerTexts();
  assert.ok(shadow[0].includes("shadow") && shadow[2] === "0" && shadow[3] !== "0", JSON.stringify(shadow));
  await window.see(`${MARKUP}.log.gz (combined)`);
  await window.see(/^Newly refused: \d+ requests of 1 key$/);
  await page.locator("td code", { hasText: "client_ip=10.0.253.232 (login)" }).waitFor();
  assert.equal(await page.locator("main img").count(), 0, "markup was interpreted");
  await window.isFine("a replay");
  assert.match(await page.locator("textarea").inputValue(), /2\/m/, "the text is kept");

  // The session ends before the log is sent. The text and the log are kept.
  await page.context().clearCookies();
  await page.getByRole("button", { name: "Replay", exact: true }).click();
  await window.see("Your session has ended");
  await page.locator("#token").fill(TOKENS.editor);
  await window.press("Enter");
  await window.see("Newly refused");
  window.forgive(401);

  // Errors are shown.
  await page.locator("#log").setInputFiles({ name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("what is this\n") });
  await page.getByRole("button", { name: "Replay", exact: true }).click();
  await window.see("unknown format; describe it with `format`");
  window.forgive(400);
  // Uses a sparse file on disk, because its content does not have to be sent to the browser.
  const folder = mkdtempSync(join(tmpdir(), "tollgate-console-"));
  writeFileSync(join(folder, "large.log"), "");
  truncateSync(join(folder, "large.log"), 33 << 20);
  await page.locator("#log").setInputFiles(join(folder, "large.log"));
  await page.getByRole("button", { name: "Replay", exact: true }).click();
  await window.see("compress the log with gzip");
  rmSync(folder, { recursive: true });
  await page.getByText("Format and attributes").click();
  await page.getByLabel("Suggest limits per").fill("client_ip");
  await page.getByLabel("Format", { exact: true }).fill("$remote_addr - - [$time_local] \"$request\" $key");
  await page.getByLabel("Attributes from fields").fill("client_ip=key");
  const keyed = accessLog().toString().replaceAll(/ 200 5 "-" "curl\/8"/g, " 203.0.113.9");
  await page.locator("#log").setInputFiles({ name: "keyed.log", mimeType: "text/plain", buffer: Buffer.from(keyed) });
  await page.getByRole("button", { name: "Replay", exact: true }).click();
  await page.locator("td code", { hasText: "client_ip=203.0.113.9 (login)" }).first().waitFor();
  await window.see("Limits that 99.9 % of 1 client never notice");
  await window.see("id: per-client_ip");
  await window.isFine("a replay with attributes");
  await page.getByRole("button", { name: "Discard the draft" }).click();
  await window.close();
}

/** Opens every page with every role. */
async function everyPage(browser) {
  for (const role of RANK) {
    const window = await Window.open(browser, origin);
    await window.logIn(TOKENS[role]);
    for (const [path, heading, text, needs] of PAGES) {
      await window.follow(path, heading);
      if (needs && !has(role, needs)) {
        await window.see(`this call needs the role ${needs}`);
        window.forgive(403);
      } else {
        await window.see(text);
      }
      assert.equal(await window.page.locator("main img").count(), 0, `${path}: markup was interpreted`);
      window.hasNoErrors(`${role} ${path}`);
    }
    await window.go("/rules/api/per-client", "per-client");
    const button = window.page.getByRole("button", { name: "Disable" });
    await button.waitFor();
    assert.equal(await button.isDisabled(), !has(role, "editor"), `${role}: Disable`);
    assert.equal(await window.page.locator("button.switch").isDisabled(), !has(role, "operator"), `${role}: kill switch`);
    await window.go("/editor?domain=api", "Editor");
    const replay = window.page.locator("details.card form > .actions button").first();
    assert.equal(await replay.isDisabled(), !has(role, "editor"), `${role}: Replay`);
    await window.close();
  }
}

/** Checks that an editor of one domain can read all domains but change only its own domain. */
async function oneDomain(browser) {
  const window = await Window.open(browser, origin);
  await window.logIn(TOKENS.web);
  const { page } = window;
  await window.go("/rules/api/per-client", "per-client");
  const disable = page.getByRole("button", { name: "Disable" });
  await disable.waitFor();
  assert.ok(await disable.isDisabled(), "a rule of another domain");
  assert.match(await disable.getAttribute("title"), /needs the role editor for the domain api; the token “web” has the role editor for web/);
  assert.ok(await page.locator("button.switch").isDisabled(), "the kill switch affects all domains");
  await window.go("/editor", "Editor");
  await page.locator("textarea").fill("domain: web\nrules:\n- { id: pages, per: [client_ip], limit: 50/s }\n");
  await window.see("valid");
  await page.getByRole("button", { name: "Plan" }).click();
  await page.getByRole("button", { name: "Apply 1 change" }).click();
  await window.see("Applied as revision");
  await window.isFine("an editor of one domain");
  await page.locator("textarea").fill("domain: api\nrules:\n- { id: mine, per: [client_ip], limit: 50/s }\n");
  await window.see("valid");
  await page.getByRole("button", { name: "Plan" }).click();
  await window.see("api");
  const apply = page.getByRole("button", { name: "Apply 1 change" });
  assert.ok((await apply.count()) === 0 || (await apply.isDisabled()), "another domain");
  window.forgive(403);
  await page.getByRole("button", { name: "Discard the draft" }).click();
  // Another user logs in after the session has ended. The text stays, and the navigation shows the new user's pages.
  await page.locator("textarea").fill("domain: web\nrules:\n- { id: pages, per: [client_ip], limit: 60/s }\n");
  await page.context().clearCookies();
  await page.getByRole("button", { name: "Plan" }).click();
  await window.see("Your session has ended");
  assert.equal(await page.getByRole("link", { name: "Tokens" }).count(), 0);
  await page.locator("#token").fill(TOKENS.admin);
  await window.press("Enter");
  await page.getByRole("link", { name: "Tokens" }).waitFor();
  await window.see("Apply 1 change");
  assert.match(await page.locator("textarea").inputValue(), /60\/s/);
  await page.getByRole("button", { name: "Discard the draft" }).click();
  window.forgive(401);
  window.hasNoErrors("another user");
  await window.close();
}

/** Opens the same pages on a narrow screen and in dark colours. Takes screenshots if requested. */
async function everyLook(browser) {
  const looks = [["dark", 1280], ["light", 400], ...(process.env.TOLLGATE_CONSOLE_PICTURES ? [["dark", 400], ["light", 1280]] : [])];
  for (const [colorScheme, width] of looks) {
    const window = await Window.open(browser, origin, { colorScheme, viewport: { width, height: 860 } });
    await window.logIn(TOKENS.admin);
    for (const [path, heading, text] of PAGES) {
      await window.go(path, heading);
      await window.see(text);
      await window.isFine(`${colorScheme} ${width} ${path}`);
      await window.picture(`${(path || "/overview").slice(1).replaceAll(/[^a-z]+/g, "-")}-${colorScheme}-${width}`);
    }
    await replayLog(window, "access.log", accessLog());
    await window.see("Newly refused");
    await window.isFine(`${colorScheme} ${width} replay`);
    await window.picture(`editor-replay-${colorScheme}-${width}`);
    await window.page.getByRole("button", { name: "Discard the draft" }).click();
    await window.close();
  }
}

/** Logs in, searches, opens a rule, and sets and clears the kill switch, by keyboard only. */
async function byKeyboard(browser) {
  const window = await Window.open(browser, origin);
  await window.logIn(TOKENS.operator);
  await window.press("g", "r");
  await window.heading("Rules");
  await window.press("/");
  await window.page.keyboard.type("log");
  await window.see("1 rule found");
  assert.match(window.page.url(), /\/console\/rules\?q=log$/);
  await window.tabTo("td a");
  await window.press("Enter");
  await window.heading("login");
  await window.page.locator("button.switch").waitFor();
  await window.press("k");
  const confirm = window.page.getByRole("button", { name: "Observe", exact: true });
  assert.ok(await confirm.isDisabled(), "the word must be typed first");
  await window.page.keyboard.type("observe");
  await window.press("Enter");
  await window.see("Observing: refusals are counted");
  await window.isFine("observing");
  await window.press("k");
  await window.page.keyboard.type("enforce");
  await window.press("Enter");
  await window.page.getByText("Observing: refusals are counted").waitFor({ state: "detached" });
  await window.press("?");
  await window.see("This list");
  await window.press("Escape");
  await window.page.goBack();
  await window.heading("Rules");
  assert.equal(await window.page.locator("input[type=search]").inputValue(), "log", "the URL contains the search");
  await window.isFine("keyboard");
  await window.close();
}

/** Reads a plot by keyboard: arrows, Home and End select a point, and Escape leaves the plot. */
async function plotsByKeyboard(browser) {
  const window = await Window.open(browser, origin);
  await window.logIn(TOKENS.reader);
  await window.page.locator("svg.plot path").first().waitFor();
  await window.tabTo("svg.plot");
  const plot = window.page.locator("svg.plot").first();
  const [shown, pointers] = [window.page.locator(".legend .when").first(), plot.locator(".pointer")];
  await window.press("ArrowLeft", "ArrowLeft", "ArrowLeft");
  assert.equal(await shown.innerText(), "3 s ago");
  assert.match(await plot.getAttribute("aria-valuetext"), /^3 s ago: admitted [\d.,K]+, refused/);
  await window.press("ArrowRight");
  assert.equal(await shown.innerText(), "2 s ago");
  await window.press("PageUp");
  assert.match(await shown.innerText(), /^9[0-9] s ago$|^1\.5\d? min ago$/);
  await window.press("Home");
  assert.equal(await pointers.count(), 1);
  await window.isFine("a plot by keyboard");
  await window.press("End");
  assert.equal(await shown.innerText(), "now");
  await window.press("Escape");
  assert.equal(await pointers.count(), 0);
  await window.close();
}

/** Changes a rule, finds the change in its history and rolls it back, by keyboard only. */
async function editingByKeyboard(browser) {
  const window = await Window.open(browser, origin);
  await window.logIn(TOKENS.editor);
  const { page } = window;
  await window.press("g", "r");
  await window.heading("Rules");
  await window.press("/");
  await page.keyboard.type("search");
  await window.see("1 rule found");
  await window.tabTo("td a");
  await window.press("Enter");
  await window.heading("search");
  await window.tabTo('a[href*="/editor"][href*="rule=search"]');
  await window.press("Enter");
  await window.heading("Editor");
  await window.see("valid");
  await window.tabTo("textarea");
  const text = await page.locator("textarea").inputValue();
  assert.match(text, /limit: 10\/s/);
  await window.press("Control+a");
  await page.keyboard.insertText(text.replace("10/s", "12/s"));
  await window.see("valid");
  await window.tabTo("main .actions button.primary");
  await window.press("Enter");
  await window.see("Apply 1 change");
  await window.tabTo("#f-comment");
  await page.keyboard.type("by keyboard");
  await window.press("Enter");
  await window.see("Applied as revision");
  await window.tabTo('.notice a[href$="/rules/api/search"]');
  await window.press("Enter");
  await window.heading("search");
  await window.tabTo('a[href$="tab=history"]');
  await window.press("Enter");
  await window.see("by keyboard");
  await window.tabTo("td button:not([disabled])");
  await window.press("Enter");
  await window.see(/\+.*12\/s/);
  // The button that follows `Changes` in the row of the previous version.
  for (;;) {
    await window.press("Tab");
    const name = await page.evaluate(() => document.activeElement?.textContent);
    if (name === "Roll back") break;
    assert.ok(name, "Roll back cannot be reached with Tab");
  }
  await window.press("Enter");
  await page.keyboard.type("back again");
  await window.press("Enter");
  await window.see("back again");
  await window.isFine("edited by keyboard");
  await window.close();
}

/** Enters a request into the Try or Keys form, by keyboard only. */
async function typeRequest(window, domain, attributes) {
  await window.tabTo("#f-domain");
  await window.page.keyboard.type(domain);
  for (const [at, [name, value]] of attributes.entries()) {
    if (at > 0) {
      await window.tabTo("form > div > button.small");
      await window.press("Enter");
    } else {
      await window.tabTo('[aria-label="Name of attribute 1"]');
    }
    await window.page.keyboard.type(name);
    await window.press("Tab");
    await window.page.keyboard.type(value);
  }
  await window.press("Enter");
}

/** Uses Try, Keys, Nodes, Audit and Tokens by keyboard only. */
async function helpingByKeyboard(browser) {
  const window = await Window.open(browser, origin);
  await window.logIn(TOKENS.admin);
  const { page } = window;
  await window.press("g", "t");
  await window.heading("Try a request");
  await typeRequest(window, "api", [["path", "/login"], ["client_ip", "192.0.2.99"]]);
  await window.see("1 of 3 rules of the domain match");
  await window.tabTo("form .actions button:nth-child(2)");
  await window.press("Enter");
  await window.see("Take from the counters?");
  await window.press("Enter");
  await window.see("Admitted; the cost was taken.");

  await window.press("g", "k");
  await window.heading("Keys");
  await typeRequest(window, "api", [["path", "/login"], ["client_ip", "192.0.2.99"]]);
  await window.see("would be admitted");
  await window.tabTo("table[aria-label='Remaining capacity'] button");
  await window.press("Enter");
  await window.see("Override the limit of login");
  await window.tabTo("#f-limit");
  await page.keyboard.type("60/m");
  await window.press("Enter");
  await window.see("The override of 192.0.2.99 is set.");
  await page.locator("td", { hasText: /^60$/ }).first().waitFor();
  await window.tabTo("form .actions button:nth-child(2)");
  await window.press("Enter");
  await window.see("Reset the counters of this request?");
  await window.press("Enter");
  await window.see(/^\d+ counters? reset$/);

  await window.press("g", "n");
  await window.heading("Nodes");
  await window.see("edge-1");
  await window.press("g", "a");
  await window.heading("Audit");
  await window.tabTo("#audit-author");
  // Every keystroke asks again, and an answer replaces the list and so the focus. Wait for the last answer.
  const lastAnswer = page.waitForResponse((response) => response.url().includes("author=editor&"));
  await page.keyboard.type("editor");
  await (await lastAnswer).finished();
  await page.waitForFunction(() => [...document.querySelectorAll("tbody td:nth-child(2)")].every((author) => author.textContent === "editor"));
  await window.see("by keyboard");
  await window.tabTo("summary");
  await window.press("Enter");
  await page.locator("td details[open] pre").first().waitFor();

  await window.press("g", "s");
  await window.heading("Tokens");
  await window.tabTo("main header button");
  await window.press("Enter");
  await page.keyboard.type("typed");
  await window.press("Enter");
  await window.see("The token of typed");
  await window.press("Enter");
  const row = page.locator("tr", { hasText: "typed" });
  await row.waitFor();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await window.tabTo("tbody button");
  // Presses Tab until the button of the newest token has the focus.
  for (let n = 0; n < 30 && !(await row.locator("button:focus").count()); n++) await window.press("Tab");
  await window.press("Enter");
  await window.see("Revoke the token of typed?");
  await window.press("Enter");
  await row.getByText("revoked").waitFor();
  await window.isFine("tokens by keyboard");
  await window.close();
}

/** Two users edit the same rule. Checks that errors appear at their lines, that a session may end during the edit, and that a conflict is reported. */
async function editing(browser) {
  const window = await Window.open(browser, origin);
  await window.logIn(TOKENS.editor);
  await window.go("/editor?domain=api&rule=login", "Editor");
  const text = window.page.locator("textarea");
  await window.see("valid");
  const before = await text.inputValue();
  await text.fill(before.replace("limits:", "limts:"));
  await window.see("Line 6");
  assert.equal(await window.page.locator(".gutter .wrong").innerText(), "6");
  await window.isFine("a mistake");
  await text.fill(before.replace("5/m", "7/m"));
  await window.see("valid");
  // The session ends: the next call asks for a login, and the text is kept.
  await window.page.context().clearCookies();
  await window.page.getByRole("button", { name: "Plan" }).click();
  await window.see("Your session has ended");
  await window.page.locator("#token").fill(TOKENS.editor);
  await window.press("Enter");
  await window.see("Apply 1 change");
  assert.match(await text.inputValue(), /7\/m/);
  assert.match(await window.page.locator(".diff").innerText(), /\+.*7\/m/);
  window.forgive(401);
  await window.isFine("a plan");
  await window.picture("editor-plan-light-1280");

  // Another user applies a change first.
  const other = await Window.open(browser, origin);
  await other.logIn(TOKENS.admin);
  await other.go("/editor?domain=api&rule=login", "Editor");
  await other.see("valid");
  await other.page.locator("textarea").fill(before.replace("5/m", "6/m"));
  await other.see("valid");
  await other.page.getByRole("button", { name: "Plan" }).click();
  await other.page.getByLabel("Comment").fill("first");
  await other.press("Enter");
  await other.see("Applied as revision");
  await other.isFine("applied");
  await other.close();

  await window.page.getByRole("button", { name: "Apply 1 change" }).click();
  await window.see("The last change was made by admin");
  window.forgive(412);
  await window.page.getByRole("button", { name: "Plan again" }).click();
  await window.page.getByText("The last change was made by admin").waitFor({ state: "detached" });
  await window.page.getByLabel("Comment").fill("second");
  await window.page.getByRole("button", { name: "Apply 1 change" }).click();
  await window.see("Applied as revision");
  await window.go("/rules/api/login?tab=history", "login");
  await window.see("second");
  await window.page.getByRole("button", { name: "Roll back" }).last().click();
  await window.page.getByRole("dialog").getByRole("button", { name: "Roll back" }).click();
  await window.see("rollback");
  await window.isFine("rolled back");
  await window.close();
}

/** Resets a key and overrides its limits for a day. The audit log contains both actions. */
async function helping(browser) {
  const window = await Window.open(browser, origin);
  await window.logIn(TOKENS.operator);
  await window.go(`/keys?domain=api&with=${encodeURIComponent('[["path","/login"],["client_ip","192.0.2.77"]]')}`, "Keys");
  await window.page.getByRole("button", { name: "Override…" }).first().click();
  await window.page.getByLabel("Limit", { exact: true }).fill("50/m");
  await window.page.getByRole("dialog").getByLabel("Comment").fill("a customer called");
  await window.page.getByRole("button", { name: "Set", exact: true }).click();
  await window.see("The override of 192.0.2.77 is set.");
  await window.page.locator("td", { hasText: /^50$/ }).first().waitFor();
  await window.page.getByRole("button", { name: "Reset" }).click();
  await window.page.getByRole("dialog").getByRole("button", { name: "Reset" }).click();
  await window.see(/^\d+ counters? reset$/);
  // The server writes this entry in the background, so the first page load may not contain it.
  await window.goUntil("/audit?author=operator", "Audit", "key reset");
  await window.see("a customer called");
  await window.isFine("helping");
  await window.close();
}

/** Creates a token, which is shown once, and revokes it. */
async function granting(browser) {
  const window = await Window.open(browser, origin);
  await window.logIn(TOKENS.admin);
  await window.go("/tokens", "Tokens");
  await window.page.getByRole("button", { name: "Create a token" }).click();
  await window.page.getByLabel("Name", { exact: true }).fill(MARKUP);
  await window.press("Enter");
  const secret = window.page.getByLabel("Token", { exact: true });
  await secret.waitFor();
  assert.match(await secret.inputValue(), /^tg_/);
  await window.isFine("a new token");
  await window.page.getByRole("button", { name: "I have copied it" }).click();
  const row = window.page.locator("tr", { hasText: MARKUP });
  await row.getByRole("button", { name: "Revoke" }).click();
  await window.page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await row.getByText("revoked").waitFor();
  assert.equal(await window.page.locator("main img").count(), 0, "markup was interpreted");
  await window.isFine("tokens");
  await window.close();
}

/** Checks that a wrong token shows an error, and that logging out ends the session. */
async function sessions(browser) {
  const window = await Window.open(browser, origin);
  await window.page.goto(`${origin}/console/rules`);
  await window.page.locator("#token").fill("tg_wrong");
  await window.press("Enter");
  await window.see("unknown token");
  window.forgive(401);
  await window.isFine("login");
  await window.page.locator("#token").fill(TOKENS.reader);
  await window.press("Enter");
  await window.heading("Rules");
  const [cookie] = await window.page.context().cookies();
  assert.ok(cookie.httpOnly && cookie.sameSite === "Strict", JSON.stringify(cookie));
  await window.page.getByRole("button", { name: "Log out" }).click();
  await window.page.locator("#token").waitFor();
  assert.deepEqual(await window.page.context().cookies(), []);
  await window.close();
}

/** Without tokens there is no login. Without a rules service, each page says where the rules are. Without the store, a banner warns. */
async function withoutService(browser) {
  const window = await Window.open(browser, alone);
  await window.go("", "Overview");
  await window.see("Deciding by fallback: the store is unreachable");
  for (const [path, heading, text] of [
    ["/rules", "Rules", "1000/s"],
    ["/rules?state=disabled", "Rules", "No rule is disabled"],
    ["/rules/api/all", "all", "Charged most"],
    ["/rules/api/all?tab=yaml", "all", "The text of the rule is not on this server"],
    ["/rules/api/none", "none", "There is no rule none in the domain api"],
    ["/editor", "Editor", "The rules of this server are not edited here"],
    ["/try?domain=api", "Try a request", "1 of 1 rule of the domain match"],
    ["/nodes", "Nodes", "Nodes report to the rules service"],
    ["/audit", "Audit", "The audit log is kept by the rules service"],
    ["/tokens", "Tokens", "Tokens are kept by the rules service"],
  ]) {
    await window.follow(path, heading);
    await window.see(text);
    await window.see("Deciding by fallback");
    window.hasNoErrors(`alone ${path}`);
  }
  assert.equal(await window.page.getByRole("button", { name: "Log out" }).count(), 0);
  await window.isFine("alone");
  await window.close();
}

/** Takes the screenshots for the documents. */
async function pictures(browser) {
  if (!process.env.TOLLGATE_CONSOLE_PICTURES) return;
  const window = await Window.open(browser, origin, { viewport: { width: 1140, height: 700 } });
  await window.logIn(TOKENS.admin);
  await window.go("?range=5m", "Overview");
  await window.page.locator("table .spark path").first().waitFor();
  await window.picture("console-overview", { fullPage: false });
  await window.go(`/try?domain=api&with=${encodeURIComponent('[["path","/v1/search"],["api_key","acme"]]')}`, "Try a request");
  await window.see("of 3 rules");
  await window.picture("console-try");
  await window.go("/editor?domain=api&rule=login", "Editor");
  await window.see("valid");
  const text = window.page.locator("textarea");
  await text.fill((await text.inputValue()).replace("5/m", "10/m"));
  await window.see("valid");
  await window.page.getByRole("button", { name: "Plan" }).click();
  await window.see("Apply 1 change");
  await window.picture("console-editor");
  await window.page.getByRole("button", { name: "Discard the draft" }).click();
  await replayLog(window, "access.log", accessLog());
  await window.see("Newly refused");
  await window.picture("console-replay");
  await window.close();
}

await withBrowser(async (browser) => {
  await sessions(browser);
  await byKeyboard(browser);
  await plotsByKeyboard(browser);
  await editing(browser);
  await editingByKeyboard(browser);
  await helpingByKeyboard(browser);
  await oneDomain(browser);
  await replaying(browser);
  await helping(browser);
  await granting(browser);
  await withoutService(browser);
  await everyPage(browser);
  await everyLook(browser);
  await pictures(browser);
});
assert.deepEqual(problems, []);
console.log("fine");
