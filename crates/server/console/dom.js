// Elements. Text is only ever set as text, so markup in names and values is shown, never interpreted.

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Child | Child[]} Children */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Sets attributes; `onclick` and the like are listeners, `true` and `false` set and remove.
 * @param {Element} element
 * @param {Record<string, any>} attributes
 */
function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") /** @type {HTMLInputElement} */ (element).value = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
}

/**
 * @template {Element} E
 * @param {E} element
 * @param {Children[]} children
 * @returns {E}
 */
export function append(element, ...children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/**
 * Creates an element: `h("div.card", {id: "a"}, "text", child)`.
 * @param {string} name
 * @param {Record<string, any>} [attributes]
 * @param {...Children} children
 * @returns {HTMLElement}
 */
export function h(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  append(element, ...children);
  set(element, attributes);
  return element;
}

/**
 * Creates an SVG element.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...Children} children
 * @returns {SVGElement}
 */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  set(element, attributes);
  return append(element, ...children);
}

/**
 * Replaces the children of an element.
 * @template {Element} E
 * @param {E} element
 * @param {...Children} children
 * @returns {E}
 */
export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, ...children);
}
