// Plots as SVG: lines over time with axes and a reading under the pointer, and sparklines.

import { fill, h, s } from "./dom.js";
import { clock, short, span } from "./format.js";

/** @typedef {{name: string, color: string, values: number[]}} Line */
/**
 * @typedef {object} PlotOptions
 * @property {string} label what is plotted, for people who do not see it
 * @property {number} step seconds between two points
 * @property {number} points how many points the width stands for
 * @property {number} [start] the time of the first point, if the lines are of the past: in milliseconds
 * @property {(value: number) => string} [format]
 * @property {number} [height]
 */

const LEFT = 52;
const BOTTOM = 22;
const TOP = 8;

/**
 * Creates a plot. Its lines end at the right edge, which is now. Lines of the past begin at `start`, and their legend has their
 * sums while no point is pointed at.
 * @param {PlotOptions} options
 * @returns {{node: HTMLElement, update: (lines: Line[], step?: number, points?: number) => void}}
 */
export function plot({ label, step, points, start, format = short, height = 180 }) {
  const svg = s("svg", { class: "plot", height, role: "img", "aria-label": label, preserveAspectRatio: "none" });
  const legend = h("div.legend");
  const node = h("figure.plot-figure", {}, legend, svg);
  /** @type {Line[]} */
  let lines = [];
  let width = 600;
  /** The point under the pointer, counted from the right. @type {number | null} */
  let pointed = null;

  const x = (/** @type {number} */ back) => LEFT + (width - LEFT - 1) * (1 - back / (points - 1));

  function draw() {
    const top = niceTop(Math.max(1, ...lines.flatMap((line) => line.values)));
    const y = (/** @type {number} */ value) => TOP + (height - TOP - BOTTOM) * (1 - value / top);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", String(width));
    fill(svg, ...grid(top, y), ...lines.map((line) => path(line, y)), pointer(y));
    fill(legend, ...lines.map(reading), h("span.when", {}, when()));
    const now = lines.map((line) => `${line.name} ${format(value(line, 0) ?? 0)}`).join(", ");
    svg.setAttribute("aria-label", `${label}: ${now || "no data yet"}`);
  }

  /** The value of a point counted from the right, or the sum of a line of the past. @param {Line} line @param {number} back */
  function value(line, back) {
    if (start !== undefined && pointed === null) return line.values.reduce((sum, one) => sum + one, 0);
    return line.values.at(-1 - back);
  }

  function when() {
    if (start === undefined) return pointed === null ? "now" : `${span(pointed * step * 1_000)} ago`;
    return pointed === null ? "in all" : time(pointed, start);
  }

  /** The time of a point counted from the right. @param {number} back @param {number} start */
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

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const part = (/** @type {PointerEvent} */ (event).clientX - box.left - LEFT) / (box.width - LEFT);
    pointed = Math.round((1 - Math.min(1, Math.max(0, part))) * (points - 1));
    draw();
  });
  svg.addEventListener("pointerleave", () => {
    pointed = null;
    draw();
  });
  new ResizeObserver(() => {
    if (node.clientWidth && node.clientWidth !== width) {
      width = node.clientWidth;
      draw();
    }
  }).observe(node);
  draw();

  return {
    node,
    update(next, nextStep = step, nextPoints = points) {
      [lines, step, points] = [next, nextStep, nextPoints];
      draw();
    },
  };
}

/** A time below a plot of this many seconds: with seconds, minutes or days. @param {number} ms @param {number} length */
function tick(ms, length) {
  const text = new Date(ms).toISOString();
  return length < 600 ? text.slice(11, 19) : length < 172_800 ? text.slice(11, 16) : text.slice(0, 10);
}

/** The next of 1, 2, 5, 10, 20, … @param {number} value */
function niceTop(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((part) => part * unit).find((top) => top >= value) ?? value;
}

/**
 * Creates a sparkline of what passed and what was refused.
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
  const last = series ? `${short(series.admitted.at(-1) ?? 0)} admitted and ${short(series.refused.at(-1) ?? 0)} refused a second` : "no data";
  svg.setAttribute("aria-label", `The last ten minutes: now ${last}`);
  return svg;
}
