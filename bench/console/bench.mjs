// Measures how much the console slows down decisions, and the response times of the console's pages.
// `scripts/bench console` starts this program: node bench.mjs TOLLGATE RUNS
//
// Ten viewers make the calls of the console's pages while wrk measures decisions, alternating with runs without
// viewers. Then Chromium opens the console. For comparison, it also opens a page of the same server without scripts,
// and the smallest page with a script, which this program serves. Finally, the program searches 10,000 rules in the
// console. Exit status 1: a goal was missed. Ratios apply to any machine; times are meaningful only on an idle
// machine.

import { execFile, spawn } from "node:child_process";
import { createRequire } from "node:module";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import http from "node:http";
import net from "node:net";
import { promisify } from "node:util";

const [, , tollgate, runs = "7"] = process.argv;
const VIEWERS = 10;
/** Interval at which the overview polls the state of the rules, in milliseconds. */
const POLL_INTERVAL = 5_000;
/** Number of measured first views. */
const VIEWS = 15;
const RULES = 10_000;
const { chromium } = createRequire(`${process.env.TOLLGATE_TEST_NODE_MODULES}/`)("playwright-core");
const folder = mkdtempSync(join(tmpdir(), "tollgate-bench-console-"));
let missed = 0;

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

function printGoal(text, met) {
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

function writeRules() {
  const list = Array.from({ length: RULES }, (_, n) => `- {id: rule-${n}, when: {path: "/v1/r${n}/**"}, per: [client], limit: 100/s}`);
  writeFileSync(join(folder, "rules.yaml"), `domain: api\nrules:\n${list.join("\n")}\n`);
  return join(folder, "rules.yaml");
}

/** Makes the calls of the overview and the rule list, and reads live data until `close` is called. */
async function openViewer(port, number) {
  const agent = new http.Agent({ keepAlive: true });
  const get = (path) =>
    new Promise((resolve, reject) => {
      const request = http.get({ port, path, agent }, (response) => {
        if (response.statusCode !== 200) reject(new Error(`a viewer was refused: ${response.statusCode}`));
        response.resume();
        if (path === "/v1/live") resolve(request);
        else response.on("end", resolve);
      });
      request.on("error", reject);
    });
  for (const path of ["/v1/session", "/v1/history", "/v1/rules-status", "/v1/rules?limit=100"]) await get(path);
  const live = await get("/v1/live");
  live.on("error", () => {});
  // The polls are staggered, as if the viewers had opened their pages at different times.
  const timers = [];
  const again = () => get("/v1/rules-status").catch(() => {});
  timers.push(setTimeout(() => (again(), timers.push(setInterval(again, POLL_INTERVAL))), (number * POLL_INTERVAL) / VIEWERS));
  return {
    close() {
      timers.forEach(clearInterval);
      live.destroy();
      agent.destroy();
    },
  };
}

/** Returns the CPU time of all server threads, in microseconds. */
function processorTime() {
  const threads = readdirSync(`/proc/${server.pid}/task`);
  return threads.reduce((sum, thread) => sum + Number(readFileSync(`/proc/${server.pid}/task/${thread}/schedstat`, "utf8").split(" ")[0]), 0) / 1_000;
}

/** Measures decisions per second, and the server's CPU time per decision in microseconds. */
async function measureDecisions(port) {
  const before = processorTime();
  const { stdout } = await promisify(execFile)("wrk", ["-t1", "-c50", "-d3s", "-s", "bench/server/check.lua", `http://127.0.0.1:${port}/v1/check`]);
  const found = /Requests\/sec:\s+([\d.]+)/.exec(stdout);
  const count = /(\d+) requests in/.exec(stdout);
  if (!found || !count) throw new Error(`no result in ${stdout}`);
  return { rate: Number(found[1]), cost: (processorTime() - before) / Number(count[1]) };
}

const openViewers = (port) => Promise.all(Array.from({ length: VIEWERS }, (_, number) => openViewer(port, number)));

/** Prints the CPU time that viewers cost the server and this process while no decisions are made. This time hardly
 * depends on other load. */
async function measureViewersAlone(port) {
  const spent = async () => {
    const before = [processorTime(), process.cpuUsage()];
    await new Promise((resolve) => setTimeout(resolve, 2 * POLL_INTERVAL));
    const { user, system } = process.cpuUsage(before[1]);
    return [processorTime() - before[0], user + system].map((micros) => micros / 1_000 / ((2 * POLL_INTERVAL) / 1_000));
  };
  const open = await openViewers(port);
  const [server, client] = await spent();
  open.forEach((viewer) => viewer.close());
  const [idle] = await spent();
  const figures = `${(server - idle).toFixed(1)} ms of CPU time per second, and this client ${client.toFixed(1)} ms`;
  console.log(`${VIEWERS} viewers cost the server ${figures}; without viewers and decisions, the server uses ${idle.toFixed(1)} ms`);
}

async function compareWithViewers(port) {
  const [ratios, costs, controls] = [[], [], []];
  await measureDecisions(port);
  let before = await measureDecisions(port);
  for (let run = 0; run < Number(runs); run++) {
    const open = await openViewers(port);
    const ten = await measureDecisions(port);
    open.forEach((viewer) => viewer.close());
    // A run with viewers is compared with the runs before and after it, so that drift of the machine cancels out.
    const after = await measureDecisions(port);
    const none = { rate: (before.rate + after.rate) / 2, cost: (before.cost + after.cost) / 2 };
    ratios.push(ten.rate / none.rate);
    costs.push(ten.cost / none.cost);
    controls.push(after.rate / before.rate);
    const shown = ({ rate, cost }) => `${Math.round(rate)} per second at ${cost.toFixed(2)} µs of CPU time`;
    console.log(`decisions: ${shown(none)} without viewers, ${shown(ten)} with ${VIEWERS} viewers`);
    before = after;
  }
  const range = (values) => `${median(values).toFixed(3)} (${Math.min(...values).toFixed(3)} to ${Math.max(...values).toFixed(3)})`;
  console.log(`CPU time of a decision with ${VIEWERS} viewers, relative to runs without viewers: ${range(costs)}`);
  console.log(`noise: a run without viewers, relative to the previous such run: ${range(controls)}`);
  printGoal(`decisions with ${VIEWERS} viewers, relative to runs without viewers: ${range(ratios)}, median (at least 0.98)`, median(ratios) >= 0.98);
}

/** The files of the smallest page with a script: a module that makes one request, shows its response and marks the frame. */
const FLOOR = {
  "/": ["text/html", '<!doctype html><title>floor</title><link rel="icon" href="data:,"><script type="module" src="main.js"></script><body>'],
  "/data": ["application/json", '{"text":"data"}'],
  "/main.js": [
    "text/javascript",
    `const data = await (await fetch("data")).json();
     document.body.append(data.text);
     requestAnimationFrame(() => setTimeout(() => performance.mark("console-shown")));`,
  ],
};

/** Serves the files of `FLOOR`. */
async function serveFloor() {
  const server = http.createServer((request, response) => {
    const [type, text] = FLOOR[request.url] ?? ["text/plain", ""];
    response.writeHead(200, { "content-type": type, "content-length": text.length }).end(text);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return server;
}

/** Opens a page in a new context, with an empty cache and no open connections. Returns the times in milliseconds. */
async function firstView(browser, url) {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(url);
  if (!url.endsWith("/healthz")) {
    // Chromium reports a paint only after the frame is drawn.
    await page.waitForFunction(() => ["console-shown", "first-contentful-paint"].every((name) => performance.getEntriesByName(name).length > 0));
  }
  const times = await page.evaluate(() => {
    const time = (name) => performance.getEntriesByName(name)[0]?.startTime ?? NaN;
    const [navigation] = performance.getEntriesByType("navigation");
    return { loaded: navigation.domContentLoadedEventEnd, shown: time("console-shown"), painted: time("first-contentful-paint") };
  });
  await context.close();
  return times;
}

async function measureInBrowser(port) {
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  const floor = await serveFloor();
  const [views, paints, blanks, floors] = [[], [], [], []];
  for (let run = 0; run < VIEWS; run++) {
    blanks.push((await firstView(browser, `http://127.0.0.1:${port}/healthz`)).loaded);
    floors.push((await firstView(browser, `http://127.0.0.1:${floor.address().port}/`)).shown);
    const { shown, painted } = await firstView(browser, `http://127.0.0.1:${port}/console`);
    views.push(shown);
    paints.push(painted);
  }
  floor.close();
  const figures = (times) => `${median(times).toFixed(0)} ms (${Math.min(...times).toFixed(0)} to ${Math.max(...times).toFixed(0)})`;
  console.log(`a page without scripts loads in ${figures(blanks)}; the smallest page with a script is shown after ${figures(floors)}`);
  console.log(`the first paint of the console comes after ${figures(paints)}`);
  printGoal(`first view with data after ${figures(views)}, median of ${VIEWS} (at most 100)`, median(views) <= 100);

  const page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${port}/console/rules`);
  await page.getByText("10,000 rules").waitFor();
  const strokes = [];
  for (const character of "rule-123") {
    // The listeners are added before the key press. The measured time ends with the frame after the
    // new rows.
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
  printGoal(`a keystroke in a list of ${RULES} rules is answered after at most ${longest.toFixed(0)} ms (goal: at most 100)`, longest <= 100);
  await browser.close();
}

const port = await freePort();
const server = spawn(tollgate, ["serve", "--http", `127.0.0.1:${port}`, "--resp", "off", "--data", "off", "--rules", writeRules()], { stdio: "ignore" });
try {
  for (let tries = 0; ; tries++) {
    const answered = await fetch(`http://127.0.0.1:${port}/healthz`).then(() => true, () => false);
    if (answered) break;
    if (tries > 1_200) throw new Error("the server does not listen");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  if (Number(runs) > 0) {
    await compareWithViewers(port);
    await measureViewersAlone(port);
  }
  await measureInBrowser(port);
} finally {
  server.kill();
  rmSync(folder, { recursive: true });
}
process.exit(missed ? 1 : 0);
