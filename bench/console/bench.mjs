// Measures how much the console slows down decisions, and how fast its pages respond.
//   `scripts/bench console` starts it: node bench.mjs TOLLGATE RUNS
//
// Ten viewers read live data while wrk measures decisions, alternating with runs without viewers. Then Chromium opens
// the console and searches ten thousand rules. Exit status 1: a goal was missed. Ratios hold on any machine; times need
// an idle one.

import { spawn, spawnSync } from "node:child_process";
import { createRequire } from "node:module";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import http from "node:http";
import net from "node:net";

const [, , tollgate, runs = "7"] = process.argv;
const VIEWERS = 10;
const RULES = 10_000;
const { chromium } = createRequire(`${process.env.TOLLGATE_TEST_NODE_MODULES}/`)("playwright-core");
const folder = mkdtempSync(join(tmpdir(), "tollgate-bench-console-"));
let missed = 0;

const middle = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

function goal(text, met) {
  console.log(`${met ? "met   " : "MISSED"}  ${text}`);
  if (!met) missed++;
}

async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

function rules() {
  const list = Array.from({ length: RULES }, (_, n) => `- {id: rule-${n}, when: {path: "/v1/r${n}/**"}, per: [client], limit: 100/s}`);
  writeFileSync(join(folder, "rules.yaml"), `domain: api\nrules:\n${list.join("\n")}\n`);
  return join(folder, "rules.yaml");
}

/** Reads live data until `close` is called. */
function view(port) {
  return new Promise((resolve, reject) => {
    const request = http.get({ port, path: "/v1/live", agent: false }, (response) => {
      if (response.statusCode !== 200) reject(new Error(`a viewer was refused: ${response.statusCode}`));
      response.resume();
      resolve({ close: () => request.destroy() });
    });
    request.on("error", reject);
  });
}

/** The processor time of all threads of the server, in microseconds. */
function processorTime() {
  const threads = readdirSync(`/proc/${server.pid}/task`);
  return threads.reduce((sum, thread) => sum + Number(readFileSync(`/proc/${server.pid}/task/${thread}/schedstat`, "utf8").split(" ")[0]), 0) / 1_000;
}

/** Measures decisions a second, and the server's processor time for each in microseconds. */
function decisions(port) {
  const before = processorTime();
  const { stdout } = spawnSync("wrk", ["-t1", "-c50", "-d2s", "-s", "bench/server/check.lua", `http://127.0.0.1:${port}/v1/check`], { encoding: "utf8" });
  const found = /Requests\/sec:\s+([\d.]+)/.exec(stdout);
  const count = /(\d+) requests in/.exec(stdout);
  if (!found || !count) throw new Error(`no figure in ${stdout}`);
  return { rate: Number(found[1]), cost: (processorTime() - before) / Number(count[1]) };
}

async function beside(port) {
  const [ratios, costs] = [[], []];
  decisions(port);
  for (let run = 0; run < Number(runs); run++) {
    // The order alternates, so that a drift of the machine cancels out.
    const runsOf = {};
    for (const viewers of run % 2 ? [VIEWERS, 0] : [0, VIEWERS]) {
      const open = await Promise.all(Array.from({ length: viewers }, () => view(port)));
      runsOf[viewers] = decisions(port);
      open.forEach((viewer) => viewer.close());
    }
    const [none, ten] = [runsOf[0], runsOf[VIEWERS]];
    ratios.push(ten.rate / none.rate);
    costs.push(ten.cost / none.cost);
    const shown = ({ rate, cost }) => `${Math.round(rate)} a second at ${cost.toFixed(2)} µs of processor time`;
    console.log(`decisions: ${shown(none)} undisturbed, ${shown(ten)} with ${VIEWERS} viewers`);
  }
  console.log(`processor time of a decision with ${VIEWERS} viewers beside undisturbed: ${middle(costs).toFixed(3)}`);
  const ratio = middle(ratios);
  goal(`decisions with ${VIEWERS} viewers beside undisturbed: ${ratio.toFixed(3)} (at least 0.98)`, ratio >= 0.98);
}

async function inBrowser(port) {
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  const views = [];
  for (let run = 0; run < 5; run++) {
    // A new context has an empty cache.
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(`http://127.0.0.1:${port}/console`);
    await page.waitForFunction(() => performance.getEntriesByName("console-shown").length > 0);
    views.push(await page.evaluate(() => performance.getEntriesByName("console-shown")[0].startTime));
    await context.close();
  }
  goal(`first view after ${middle(views).toFixed(0)} ms (at most 100)`, middle(views) <= 100);

  const page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${port}/console/rules`);
  await page.getByText("10,000 rules").waitFor();
  const strokes = [];
  for (const character of "rule-123") {
    // Listening begins before the key is pressed; the time ends with the frame after the new rows.
    await page.evaluate(() => {
      const input = document.querySelector("input[type=search]");
      input.focus();
      window.answered = new Promise((resolve) => {
        let start = 0;
        input.addEventListener("keydown", () => (start = performance.now()), { once: true });
        new MutationObserver((_, observer) => {
          observer.disconnect();
          requestAnimationFrame(() => resolve(performance.now() - start));
        }).observe(document.querySelector("main table").parentElement, { childList: true });
      });
    });
    await page.keyboard.press(character);
    strokes.push(await page.evaluate(() => window.answered));
  }
  const longest = Math.max(...strokes);
  goal(`a keystroke in a list of ${RULES} rules is answered after at most ${longest.toFixed(0)} ms (at most 100)`, longest <= 100);
  await browser.close();
}

const port = await freePort();
const server = spawn(tollgate, ["serve", "--http", `127.0.0.1:${port}`, "--resp", "off", "--data", "off", "--rules", rules()], { stdio: "ignore" });
try {
  for (let tries = 0; ; tries++) {
    const answered = await fetch(`http://127.0.0.1:${port}/healthz`).then(() => true, () => false);
    if (answered) break;
    if (tries > 1_200) throw new Error("the server does not listen");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  if (Number(runs) > 0) await beside(port);
  await inBrowser(port);
} finally {
  server.kill();
  rmSync(folder, { recursive: true });
}
process.exit(missed ? 1 : 0);
