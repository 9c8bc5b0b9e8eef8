// Creates and replaces elements.

/**
 * @import { Cell } from "./data"
 *
 * @typedef {Node | string | null | undefined | Child[]} Child null and undefined are omitted.
 *
 * @typedef {Record<string, string | number | boolean | null | undefined>} Attributes false, null and undefined
 *   are omitted.
 */

const SVG = "http://www.w3.org/2000/svg";
const MATHML = "http://www.w3.org/1998/Math/MathML";

/**
 * Returns an element of index.html.
 *
 * @template {HTMLElement} Kind
 * @param {string} id
 * @param {new () => Kind} kind
 */
export function getElement(id, kind) {
  const element = document.getElementById(id);
  if (!(element instanceof kind)) throw new Error(`element ${id} must be a ${kind.name}`);
  return element;
}

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} attributes
 * @param {...Child} children
 */
export function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/**
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} attributes
 * @param {...Child} children
 */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/**
 * @param {string} tag
 * @param {...Child} children
 */
export function mathml(tag, ...children) {
  return fill(document.createElementNS(MATHML, tag), {}, children);
}

/**
 * Returns a button with a state.
 *
 * @param {string} key identifies the button when the page is drawn again.
 * @param {boolean} isPressed
 * @param {() => void} onClick
 * @param {...Child} children
 */
export function toggleButton(key, isPressed, onClick, ...children) {
  const attributes = { type: "button", "aria-pressed": String(isPressed), "data-key": key };
  const button = html("button", attributes, ...children);
  button.addEventListener("click", onClick);
  return button;
}

/**
 * @template {Element} Kind
 * @param {Kind} element
 * @param {Attributes} attributes
 * @param {Child[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, String(value));
  }
  element.append(...flatten(children));
  return element;
}

/**
 * @param {Child[]} children
 * @returns {(Node | string)[]}
 */
function flatten(children) {
  return children.flatMap((child) => (Array.isArray(child) ? flatten(child) : (child ?? [])));
}

/**
 * Replaces the children of an element. The focus moves to the new element with the same `data-key`. Elements with the
 * same `data-kept` keep their scroll position and stay open or closed.
 *
 * @param {Element} parent
 * @param {...Child} children
 */
export function render(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const key = focused?.getAttribute("data-key");
  const kept = [...parent.querySelectorAll("[data-kept]")].map((element) => ({
    name: element.getAttribute("data-kept") ?? "",
    scrollLeft: element.scrollLeft,
    scrollTop: element.scrollTop,
    isOpen: element instanceof HTMLDetailsElement && element.open,
  }));
  parent.replaceChildren(...flatten(children));
  for (const { name, scrollLeft, scrollTop, isOpen } of kept) {
    const element = parent.querySelector(`[data-kept="${CSS.escape(name)}"]`);
    if (element) [element.scrollLeft, element.scrollTop] = [scrollLeft, scrollTop];
    if (element instanceof HTMLDetailsElement) element.open = isOpen;
  }
  if (!key) return;
  const same = parent.querySelector(`[data-key="${CSS.escape(key)}"]`);
  const next = same ?? parent.querySelector('[aria-selected="true"], [data-cell][tabindex="0"], button');
  if (next instanceof HTMLElement || next instanceof SVGElement) next.focus({ preventScroll: true });
}

/**
 * Returns the cell in which an event happened, or null.
 *
 * @param {Event} event
 */
export function cellOf({ target }) {
  const element = target instanceof Element ? target.closest("[data-cell]") : null;
  return element ? parseCell(element.getAttribute("data-cell") ?? "") : null;
}

/**
 * @param {string} text such as "3,5".
 * @returns {Cell}
 */
export function parseCell(text) {
  const [t, s] = text.split(",").map(Number);
  return [t, s];
}
