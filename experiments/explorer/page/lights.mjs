// What lights up where a person points: a target word lights the source words it looked at, and back.

const LEAST = 0.1; // of a weight that lights a word

/**
 * Lights words of an article, and lines between them, while a person points at one or has the focus on it.
 *
 * @param {Element} article with elements that have `data-target`, `data-source`, or `data-cell`.
 * @param {ArrayLike<number>[]} weights
 * @param {[number, number] | null} cell what is lit when nothing is pointed at.
 */
export function addLights(article, weights, cell) {
  const back = () =>
    light(article, weights, placeOf(document.activeElement) ?? (cell && { t: cell[0], s: cell[1] }));
  for (const event of ["mouseover", "focusin"]) {
    article.addEventListener(event, ({ target }) => {
      const place = placeOf(target);
      if (place) light(article, weights, place);
    });
  }
  for (const event of ["mouseout", "focusout"]) article.addEventListener(event, back);
  light(article, weights, cell && { t: cell[0], s: cell[1] });
}

/** Returns which words an element stands for: a target, a source, or one of each. */
function placeOf(element) {
  const found = element?.closest?.("[data-target], [data-source], [data-cell]");
  if (!found) return null;
  const { target, source, cell } = found.dataset;
  if (cell) return { t: Number(cell.split(",")[0]), s: Number(cell.split(",")[1]) };
  return target === undefined ? { s: Number(source) } : { t: Number(target) };
}

function light(article, weights, place) {
  for (const element of article.querySelectorAll("[data-target], [data-source], path[data-cell]")) {
    const share = place ? shareOf(placeOf(element), weights, place) : 0;
    element.classList.toggle("lit", share >= LEAST);
    element.classList.toggle("dim", Boolean(place) && element.tagName === "path" && share < LEAST);
  }
}

/** Returns how much of what is pointed at belongs to an element: 1 for itself, a weight for what it looked at. */
function shareOf(own, weights, place) {
  if (own.t !== undefined && own.s !== undefined) {
    const isOn = (place.t ?? own.t) === own.t && (place.s ?? own.s) === own.s;
    return isOn ? 1 : 0;
  }
  if (own.t !== undefined)
    return place.t === undefined ? (weights[own.t]?.[place.s] ?? 0) : Number(own.t === place.t);
  return place.s === undefined ? (weights[place.t]?.[own.s] ?? 0) : Number(own.s === place.s);
}
