// A real browser that records errors, requests to other hosts, and accessibility violations.

import { createRequire } from "node:module";
import { mkdirSync, readFileSync } from "node:fs";
import assert from "node:assert/strict";

const modules = createRequire(`${process.env.TOLLGATE_TEST_NODE_MODULES}/`);
const { chromium } = modules("playwright-core");
const axe = readFileSync(modules.resolve("axe-core/axe.min.js"), "utf8");
const PATIENCE = 120_000;

/** Starts the browser and runs `test` with it. */
export async function withBrowser(test) {
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  try {
    await test(browser);
  } finally {
    await browser.close();
  }
}

/** The problems found on all pages, reported together. */
export const problems = [];

/** A browser window of one user. */
export class Window {
  constructor(page, origin) {
    this.page = page;
    this.origin = origin;
    this.errors = [];
  }

  static async open(browser, origin, options = {}) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce", ...options });
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE);
    const window = new Window(page, origin);
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) window.errors.push(`${message.text()} ${message.location().url}`);
    });
    page.on("pageerror", (error) => window.errors.push(String(error.stack)));
    page.on("request", (request) => {
      const url = new URL(request.url());
      if (url.origin !== origin && url.protocol !== "data:") window.errors.push(`requested from elsewhere: ${url}`);
    });
    return window;
  }

  /** Logs in through the form, by keyboard. Discards the error report of the 401 that leads to the form. */
  async logIn(token) {
    await this.page.goto(`${this.origin}/console`);
    await this.page.locator("#token").waitFor();
    await this.page.keyboard.type(token);
    await this.page.keyboard.press("Enter");
    await this.heading("Overview");
    this.forgive(401);
  }

  /** Opens a page and waits for its heading. */
  async go(path, heading) {
    await this.page.goto(`${this.origin}/console${path}`);
    await this.heading(heading);
  }

  /** Reloads a page until it shows a text. */
  async goUntil(path, heading, text) {
    for (let n = 0; n < 30; n++) {
      await this.go(path, heading);
      const found = this.page.getByText(text).filter({ visible: true }).first();
      if (await found.waitFor({ timeout: 1000 }).then(() => true, () => false)) return;
    }
    assert.fail(`${path} does not show ${text}`);
  }

  /** Opens a page without reloading the document, as a link does. */
  async follow(path, heading) {
    await this.page.evaluate((address) => {
      history.pushState(null, "", address);
      dispatchEvent(new PopStateEvent("popstate"));
    }, `/console${path}`);
    await this.heading(heading);
  }

  heading(text) {
    return this.page.locator("h1", { hasText: text }).waitFor();
  }

  /** Waits for text anywhere on the page. */
  see(text) {
    return this.page.getByText(text).filter({ visible: true }).first().waitFor();
  }

  /** Presses keys one after the other. */
  async press(...keys) {
    for (const key of keys) await this.page.keyboard.press(key);
  }

  /** Presses Tab until the selected element has the focus. */
  async tabTo(selector, max = 60) {
    for (let n = 0; n < max; n++) {
      if (await this.page.evaluate((found) => document.activeElement?.matches(found), selector)) return;
      await this.page.keyboard.press("Tab");
    }
    assert.fail(`${selector} cannot be reached with Tab`);
  }

  /** Discards error reports of an expected status. */
  forgive(status) {
    this.errors = this.errors.filter((error) => !error.includes(`status of ${status}`));
  }

  /** Records the errors reported by the browser. */
  hasNoErrors(what) {
    problems.push(...this.errors.splice(0).map((error) => `${what}: ${error}`));
  }

  /** Records browser errors, axe violations, and whether the page is too wide. */
  async isFine(what) {
    this.hasNoErrors(what);
    // The page's policy forbids external scripts, so axe is injected by the browser.
    await this.page.evaluate(axe);
    const { violations } = await this.page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    problems.push(...violations.map(({ id, nodes }) => `${what}: ${id}: ${nodes.map((node) => node.html).join("\n")}`));
    const wide = await this.page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
    if (wide) problems.push(`${what}: wider than the window`);
  }

  /** Takes a screenshot if requested. */
  async picture(name, options = {}) {
    const folder = process.env.TOLLGATE_CONSOLE_PICTURES;
    if (!folder) return;
    mkdirSync(folder, { recursive: true });
    // Scrolls up. Otherwise the bar, which stays in view, would not be at the top of a full-page screenshot.
    await this.page.evaluate(() => scrollTo(0, 0));
    await this.page.screenshot({ path: `${folder}/${name}.png`, fullPage: true, ...options });
  }

  close() {
    return this.page.context().close();
  }
}
