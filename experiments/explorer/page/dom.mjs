// Elements of the page.

/**
 * @import { Cell } from "./data"
 *
 * @typedef {Node | string | null | undefined | Child[]} Child null and undefined are left out.
 *
 * @typedef {Record<string, string | number | boolean | null | undefined>} Attributes false, null and undefined
 *   are left out.
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Returns an element of index.html.
 *
 * @template {HTMLElement} Kind
 * @param {string} id
 * @param {new () => Kind} kind
 */
export function find(id, kind) {
  const element = document.getElementById(id);
  if (!(element instanceof kind)) throw new Error(`it has no ${kind.name} of the id ${id}`);
  return element;
}

/**
 * Returns an element of HTML.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} attributes
 * @param {...Child} children
 */
export function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/**
 * Returns an element of SVG.
 *
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} attributes
 * @param {...Child} children
 */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/**
 * Returns a button that is down or not.
 *
 * @param {string} key by which the focus finds it again.
 * @param {boolean} isDown
 * @param {() => void} onClick
 * @param {...Child} children
 */
export function toggle(key, isDown, onClick, ...children) {
  const attributes = { type: "button", "aria-pressed": String(isDown), "data-key": key };
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
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, String(value));
  }
  element.append(...flat(children));
  return element;
}

/**
 * @param {Child[]} children
 * @returns {(Node | string)[]}
 */
function flat(children) {
  return children.flatMap((child) => (Array.isArray(child) ? flat(child) : (child ?? [])));
}

/**
 * Replaces the children of an element. What the user did to the old ones stays: the focus is on the element of the
 * same `data-key`, and those of the same `data-kept` are scrolled, and open, as they were.
 *
 * @param {Element} parent
 * @param {...Child} children
 */
export function show(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const key = focused?.getAttribute("data-key");
  const kept = [...parent.querySelectorAll("[data-kept]")].map((element) => ({
    name: element.getAttribute("data-kept") ?? "",
    scrollLeft: element.scrollLeft,
    isOpen: element instanceof HTMLDetailsElement && element.open,
  }));
  parent.replaceChildren(...flat(children));
  for (const { name, scrollLeft, isOpen } of kept) {
    const element = parent.querySelector(`[data-kept="${CSS.escape(name)}"]`);
    if (element) element.scrollLeft = scrollLeft;
    if (element instanceof HTMLDetailsElement) element.open = isOpen;
  }
  if (!key) return;
  const same = parent.querySelector(`[data-key="${CSS.escape(key)}"]`);
  const next = same ?? parent.querySelector('[aria-selected="true"], [data-cell][tabindex="0"], button');
  if (next instanceof HTMLElement) next.focus({ preventScroll: true });
}

/**
 * Returns the cell in which an event happened, if it did in one.
 *
 * @param {Event} event
 */
export function cellOf({ target }) {
  const element = target instanceof Element ? target.closest("[data-cell]") : null;
  return element ? parseCell(element.getAttribute("data-cell") ?? "") : null;
}

/**
 * @param {string} text the positions, with a comma between them.
 * @returns {Cell}
 */
export function parseCell(text) {
  const [t, s] = text.split(",").map(Number);
  return [t, s];
}

/**
 * Returns a word of at most some characters, as a reader counts them; a longer one ends in an ellipsis.
 *
 * @param {string} word
 */
export function cutShort(word, most = 40) {
  if (word.length <= most) return word;
  const characters = Array.from(
    new Intl.Segmenter().segment(word.slice(0, 10 * most)),
    (each) => each.segment,
  );
  const isWhole = characters.length <= most && word.length <= 10 * most;
  return isWhole ? word : `${characters.slice(0, most - 1).join("")}…`;
}

/**
 * Returns a weight in few characters: ".07", "1", "<.01", "−.5", "2.3e+4".
 *
 * @param {number} number
 * @returns {string}
 */
export function share(number) {
  if (number < 0) return `−${share(-number)}`;
  if (number > 0 && number < 0.005) return "<.01";
  if (number >= 100) return number.toPrecision(2);
  return number
    .toFixed(2)
    .replace(/^0/, "")
    .replace(".00", number < 0.5 ? "0" : "");
}

/**
 * Returns a number with a minus sign instead of a hyphen.
 *
 * @param {number} number
 */
export function signed(number, digits = 2) {
  return number.toFixed(digits).replace("-", "−");
}
