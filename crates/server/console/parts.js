// Components shared by several pages: headings, tables, forms, dialogs and plots.

import { ago, clock, fill, h, Problem, s, short, span, time } from "./base.js";

/** @typedef {import("./base.js").Children} Children */

/**
 * The input of a page.
 * @typedef {object} Page
 * @property {string[]} parts the path segments after the page name
 * @property {URLSearchParams} query
 * @property {AbortSignal} signal aborted when the user leaves the page
 * @property {(changes: Record<string, string | null>) => void} setQuery changes the URL without a new history entry
 */

/** @param {string} title @param {...Children} actions */
export const heading = (title, ...actions) =>
  h("header.heading", {}, h("h1", { tabindex: "-1" }, title), h("div.actions", {}, ...actions));

/** A link within the console. @param {string} path @param {...Children} children */
export const link = (path, ...children) => h("a", { href: `/console${path}` }, ...children);

/** @param {string} domain @param {string} id */
export const ruleHref = (domain, id) => `/rules/${encodeURIComponent(domain)}/${encodeURIComponent(id)}`;

/** @param {string} kind @param {...Children} text */
export const badge = (kind, ...text) => h(`span.badge.${kind}`, {}, ...text);

/** A hint shown in place of an empty list. @param {string} title @param {...Children} hint */
export const empty = (title, ...hint) => h("div.empty", {}, h("p.empty-title", {}, title), h("p.muted", {}, ...hint));

/** A section with a title. @param {string} title @param {...Children} children */
export const card = (title, ...children) => h("section.card", {}, title ? h("h2", {}, title) : null, ...children);

/** An instant: the time since then, with the exact time as a tooltip. @param {number} ms */
export const when = (ms) => h("time", { title: time(ms), datetime: new Date(ms).toISOString() }, ago(ms));

/** Returns the message of an error. @param {unknown} error */
export function errorText(error) {
  if (error instanceof Problem) return error.message;
  return error instanceof Error ? error.message : String(error);
}

/** A box that shows an error. @param {unknown} error */
export function errorBox(error) {
  const box = h("div.notice.bad", { role: "alert" }, h("b", {}, error instanceof Problem ? error.title : "Error"), " ", errorText(error));
  if (error instanceof Problem && error.author) {
    box.append(h("p", {}, `The last change was made by ${error.author}${error.at_ms ? `, ${ago(error.at_ms)}` : ""}.`));
  }
  if (error instanceof Problem && error.diff) box.append(diffView(error.diff));
  return box;
}

/**
 * A table. On narrow screens each row is a block, with the column names before the values.
 * @param {string} label
 * @param {(string | {name: string, number?: boolean})[]} columns
 * @param {Children[][]} rows
 */
export function table(label, columns, rows) {
  const heads = columns.map((column) => (typeof column === "string" ? { name: column } : column));
  const cell = (/** @type {Children} */ value, /** @type {number} */ at) =>
    h("td", { "data-label": heads[at].name, class: heads[at].number ? "number" : null }, Array.isArray(value) ? h("span.cell", {}, ...value) : value);
  return h(
    "table",
    { "aria-label": label },
    h("thead", {}, h("tr", {}, ...heads.map((head) => h("th", { scope: "col", class: head.number ? "number" : null }, head.name || h("span.hidden", {}, "Actions"))))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell)))),
  );
}

/** Shows a diff, whose lines begin with `+`, `-` or a space. @param {string} diff */
export function diffView(diff) {
  const kinds = /** @type {Record<string, string>} */ ({ "+": "added", "-": "removed" });
  const lines = diff.replace(/\n$/, "").split("\n");
  return h("pre.diff", { tabindex: "0" }, ...lines.map((line) => h("span.line" + (kinds[line[0]] ? `.${kinds[line[0]]}` : ""), {}, `${line}\n`)));
}

/** @param {string} text */
export const code = (text) => h("pre.code", { tabindex: "0" }, text);

/**
 * Tabs as links. The URL determines the open tab.
 * @param {string} label
 * @param {{name: string, href: string, open: boolean}[]} items
 */
export const tabs = (label, items) =>
  h("nav.tabs", { "aria-label": label }, ...items.map(({ name, href, open }) => h("a", { href, "aria-current": open ? "page" : null }, name)));

/**
 * A labelled control.
 * @param {string} label
 * @param {HTMLElement} control
 * @param {string} [hint]
 */
export function field(label, control, hint) {
  control.id ||= `f-${label.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  return h("div.field", {}, h("label", { for: control.id }, label), control, hint ? h("p.muted.small", {}, hint) : null);
}

/** @param {Record<string, any>} [attributes] */
export const input = (attributes) =>
  /** @type {HTMLInputElement} */ (h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes }));

/** @param {string[]} values @param {string} chosen @param {Record<string, any>} [attributes] */
export const select = (values, chosen, attributes = {}) =>
  /** @type {HTMLSelectElement} */ (h("select", attributes, ...values.map((value) => h("option", { selected: value === chosen }, value))));

/**
 * Shows a confirmation dialog. `act` runs when the user confirms. If it fails, its error is shown and the dialog stays
 * open. @param {object} options @param {string} options.title @param {Children} options.text @param {string}
 * options.button @param {string} [options.word] a word to type before confirming @param {boolean} [options.danger]
 * @param {Children} [options.fields] @param {() => Promise<unknown>} options.act
 */
export function confirm({ title, text, button, word, danger, fields, act }) {
  const error = h("div");
  const typed = word ? input({ id: "confirm-word", "aria-describedby": "confirm-text" }) : null;
  const submit = h(danger ? "button.danger" : "button.primary", { type: "submit", disabled: word !== undefined }, button);
  const close = () => dialog.remove();
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "confirm-title" }, title),
    h("div", { id: "confirm-text" }, ...(Array.isArray(text) ? text : [text])),
    ...(Array.isArray(fields) ? fields : [fields ?? null]),
    typed && h("div.field", {}, h("label", { for: "confirm-word" }, "Type ", h("b", {}, word ?? ""), " to confirm"), typed),
    error,
    h("div.actions", {}, h("button", { type: "button", onclick: close }, "Cancel"), submit),
  );
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog", { "aria-labelledby": "confirm-title" }, form));
  dialog.addEventListener("close", close);
  typed?.addEventListener("input", () => submit.toggleAttribute("disabled", typed.value.trim() !== word));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.setAttribute("disabled", "");
    try {
      await act();
      close();
    } catch (problem) {
      fill(error, errorBox(problem));
      submit.removeAttribute("disabled");
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  (typed ?? /** @type {HTMLElement | null} */ (form.querySelector("input, select")) ?? submit).focus();
}

/** Shows a short confirmation message. @param {string} text */
export function toast(text) {
  const node = h("div.toast", { role: "status" }, text);
  document.body.append(node);
  setTimeout(() => node.remove(), 4_000);
}

/**
 * Shows the result of a promise, or its error. @template T @param {HTMLElement} place @param
 * {Promise<T>} promise @param {(value: T) => Children} show @param {AbortSignal} signal
 */
export async function load(place, promise, show, signal) {
  try {
    const value = await promise;
    if (!signal.aborted) {
      const shown = show(value);
      fill(place, ...(Array.isArray(shown) ? shown : [shown]));
    }
  } catch (error) {
    if (!signal.aborted) fill(place, errorBox(error));
  }
}

// SVG plots: lines over time with axes and a readout at the pointer, and sparklines.

/** @typedef {{name: string, color: string, values: number[]}} Line */
/**
 * @typedef {object} PlotOptions
 * @property {string} label the accessible name
 * @property {number} step seconds between two points
 * @property {number} points the number of points over the whole width
 * @property {number} [start] the time of the first point in milliseconds, for historical data
 * @property {(value: number) => string} [format]
 * @property {number} [height]
 */

const LEFT = 52;
const BOTTOM = 22;
const TOP = 8;

/**
 * Creates a plot. Without `start`, the right edge is the current time. With `start`, the plot shows historical data
 * that begins at `start`, and the legend shows totals while no point is selected.
 * @param {PlotOptions} options
 * @returns {{node: HTMLElement, update: (lines: Line[], step?: number, points?: number) => void}}
 */
export function plot({ label, step, points, start, format = short, height = 180 }) {
  // For the keyboard, the plot is a slider: the arrow keys select a point.
  const svg = s("svg", { class: "plot", height, role: "slider", tabindex: 0, "aria-label": label, "aria-valuemin": 0, preserveAspectRatio: "none" });
  const legend = h("div.legend");
  const node = h("figure.plot-figure", {}, legend, svg);
  /** @type {Line[]} */
  let lines = [];
  /** The width in pixels; 0 until the plot is on the page. Nothing is drawn while it is 0. */
  let width = 0;
  /** The selected point, counted from the right. @type {number | null} */
  let pointed = null;

  const x = (/** @type {number} */ back) => LEFT + (width - LEFT - 1) * (1 - back / (points - 1));

  function draw() {
    if (width === 0) return;
    const top = niceTop(Math.max(1, ...lines.flatMap((line) => line.values)));
    const y = (/** @type {number} */ value) => TOP + (height - TOP - BOTTOM) * (1 - value / top);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", String(width));
    fill(svg, ...grid(top, y), ...lines.map((line) => path(line, y)), pointer(y));
    fill(legend, ...lines.map(reading), h("span.when", {}, when()));
    const read = lines.map((line) => `${line.name} ${format(value(line, pointed ?? 0) ?? 0)}`).join(", ");
    svg.setAttribute("aria-valuemax", String(points - 1));
    svg.setAttribute("aria-valuenow", String(points - 1 - (pointed ?? 0)));
    svg.setAttribute("aria-valuetext", read ? `${when()}: ${read}` : "no data yet");
  }

  /** Returns the value of a point, or the total of historical data if no point is selected. @param {Line} line @param {number} back */
  function value(line, back) {
    if (start !== undefined && pointed === null) return line.values.reduce((sum, one) => sum + one, 0);
    return line.values.at(-1 - back);
  }

  function when() {
    if (start === undefined) return pointed ? `${span(pointed * step * 1_000)} ago` : "now";
    return pointed === null ? "total" : time(pointed, start);
  }

  /** Returns the time of a point, counted from the right. @param {number} back @param {number} start */
  const time = (back, start) => clock(start + (points - 1 - back) * step * 1_000);

  /** @param {Line} line */
  function reading(line) {
    const shown = value(line, pointed ?? 0);
    return h("span.reading", {}, h(`span.key.${line.color}`), line.name, h("b", {}, shown === undefined ? "–" : format(shown)));
  }

  /** @param {number} top @param {(value: number) => number} y */
  function grid(top, y) {
    const rows = [0, 0.5, 1].flatMap((part) => [
      s("line", { class: "grid", x1: LEFT, x2: width, y1: y(top * part), y2: y(top * part) }),
      s("text", { class: "tick", x: LEFT - 8, y: y(top * part) + 4, "text-anchor": "end" }, part === 0 ? "0" : format(top * part)),
    ]);
    const length = (points - 1) * step;
    const parts = start !== undefined ? [1, 0.5, 0] : length < 600 ? [1, 0.8, 0.6, 0.4, 0.2, 0] : [1, 2 / 3, 1 / 3, 0];
    const columns = parts.map((part) => {
      const anchor = part === 1 ? "start" : part === 0 ? "end" : "middle";
      const ago = part === 0 ? "now" : `−${span(Math.round((part * length) / 60) * 60_000)}`;
      const text = start === undefined ? ago : tick(start + (1 - part) * length * 1_000, length);
      return s("text", { class: "tick", x: x(part * (points - 1)), y: height - 5, "text-anchor": anchor }, text);
    });
    return [...rows, ...columns];
  }

  /** @param {Line} line @param {(value: number) => number} y */
  function path({ values, color }, y) {
    const shown = values.slice(-points);
    const d = shown.map((value, at) => `${at ? "L" : "M"}${x(shown.length - 1 - at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    return s("path", { class: `line ${color}`, d });
  }

  /** @param {(value: number) => number} y */
  function pointer(y) {
    if (pointed === null) return null;
    const at = pointed;
    const dots = lines.filter((line) => line.values.at(-1 - at) !== undefined);
    return s(
      "g",
      {},
      s("line", { class: "pointer", x1: x(at), x2: x(at), y1: TOP, y2: height - BOTTOM }),
      ...dots.map((line) => s("circle", { class: `dot ${line.color}`, cx: x(at), cy: y(line.values.at(-1 - at) ?? 0), r: 3 })),
    );
  }

  /** Selects a point, counted from the right. `null` shows the newest point, or totals if the data is historical. @param {number | null} back */
  function point(back) {
    pointed = back === null ? null : Math.min(points - 1, Math.max(0, back));
    draw();
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const part = (/** @type {PointerEvent} */ (event).clientX - box.left - LEFT) / (box.width - LEFT);
    point(Math.round((1 - part) * (points - 1)));
  });
  svg.addEventListener("pointerleave", () => point(null));
  svg.addEventListener("blur", () => point(null));
  svg.addEventListener("keydown", (event) => {
    const { key, ctrlKey, metaKey, altKey } = /** @type {KeyboardEvent} */ (event);
    const [at, page] = [pointed ?? 0, Math.ceil(points / 10)];
    // The oldest point with a value.
    const oldest = Math.min(points, Math.max(1, ...lines.map((line) => line.values.length))) - 1;
    /** @type {Record<string, number | null>} */
    const keys = { ArrowLeft: at + 1, ArrowRight: at - 1, PageUp: at + page, PageDown: at - page, Home: oldest, End: 0, Escape: null };
    if (ctrlKey || metaKey || altKey || !(key in keys)) return;
    event.preventDefault();
    point(keys[key]);
  });
  new ResizeObserver(([entry]) => {
    // Reading `clientWidth` instead would compute the layout again after another plot has been drawn.
    const measured = Math.floor(entry.contentRect.width);
    if (measured && measured !== width) {
      width = measured;
      draw();
    }
  }).observe(node);

  return {
    node,
    update(next, nextStep = step, nextPoints = points) {
      [lines, step, points] = [next, nextStep, nextPoints];
      draw();
    },
  };
}

/** Formats an axis label: with seconds, minutes or days, depending on the length of the plot in seconds. @param {number} ms @param {number} length */
function tick(ms, length) {
  const text = new Date(ms).toISOString();
  return length < 600 ? text.slice(11, 19) : length < 172_800 ? text.slice(11, 16) : text.slice(0, 10);
}

/** Rounds up to the next of 1, 2, 5, 10, 20, … @param {number} value */
function niceTop(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((part) => part * unit).find((top) => top >= value) ?? value;
}

/**
 * Creates a sparkline of admitted, refused and shadow-refused requests.
 * @param {{admitted: number[], refused: number[], shadow: number[]} | undefined} series
 * @param {number} points
 */
export function sparkline(series, points) {
  const [width, height] = [120, 26];
  const svg = s("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  const lines = series ? [["admitted", series.admitted], ["shadow", series.shadow], ["refused", series.refused]] : [];
  const top = Math.max(1, ...lines.flatMap(([, values]) => /** @type {number[]} */ (values)));
  for (const [color, values] of /** @type {[string, number[]][]} */ (lines)) {
    if (color !== "admitted" && values.every((value) => value === 0)) continue;
    const shown = values.slice(-points);
    const d = shown.map((value, at) => {
      const x = width - ((shown.length - 1 - at) * width) / (points - 1);
      return `${at ? "L" : "M"}${x.toFixed(1)} ${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`;
    });
    svg.append(s("path", { class: `line ${color}`, d: d.join("") }));
  }
  const last = series ? `${short(series.admitted.at(-1) ?? 0)} admitted and ${short(series.refused.at(-1) ?? 0)} refused per second` : "no data";
  svg.setAttribute("aria-label", `The last ten minutes: now ${last}`);
  return svg;
}
