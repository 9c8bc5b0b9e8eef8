// Elements of the page.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Returns an element of HTML.
 *
 * @param {string} tag
 * @param {object} attributes those that begin with "on" are functions; false and null are left out.
 * @param {...(Node | string | null)} children
 */
export function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Returns an element of SVG; see `html`. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Returns a button that is down or not, with a `key` by which the focus finds it again. */
export function toggle(key, isDown, onclick, ...children) {
  return html(
    "button",
    { type: "button", "aria-pressed": String(isDown), "data-key": key, onclick },
    ...children,
  );
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/**
 * Puts new children in the place of an element's. What a person has done to the old ones stays: the focus is on
 * the element of the same `data-key`, and those of the same `data-kept` are scrolled, and open, as they were.
 */
export function show(place, ...children) {
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const kept = [...place.querySelectorAll("[data-kept]")].map(({ dataset, scrollLeft, open }) => [
    dataset.kept,
    { scrollLeft, open },
  ]);
  place.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  for (const [name, { scrollLeft, open }] of kept) {
    const element = place.querySelector(`[data-kept="${CSS.escape(name)}"]`);
    if (element) Object.assign(element, { scrollLeft, ...(open === undefined ? {} : { open }) });
  }
  if (!focused) return;
  const same = place.querySelector(`[data-key="${CSS.escape(focused)}"]`);
  (same ?? place.querySelector('[aria-selected="true"], [data-cell][tabindex="0"], button'))?.focus({
    preventScroll: true,
  });
}

/** Returns a word of at most so many characters, as a person counts them; a longer one ends in an ellipsis. */
export function cutShort(word, most = 40) {
  if (word.length <= most) return word;
  const characters = Array.from(new Intl.Segmenter().segment(word.slice(0, 10 * most)), (each) => each.segment);
  const isWhole = characters.length <= most && word.length <= 10 * most;
  return isWhole ? word : `${characters.slice(0, most - 1).join("")}…`;
}

/** Returns a share of 1, or a weight that is none, in few characters: ".07", "1", "<.01", "−.5", "2.3e+4". */
export function share(number) {
  if (number < 0) return `−${share(-number)}`;
  if (number > 0 && number < 0.005) return "<.01";
  if (number >= 100) return number.toPrecision(2);
  return number
    .toFixed(2)
    .replace(/^0/, "")
    .replace(".00", number < 0.5 ? "0" : "");
}

/** Returns a number with a minus that can be read. */
export function signed(number, digits = 2) {
  return number.toFixed(digits).replace("-", "−");
}
