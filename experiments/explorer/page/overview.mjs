// All layers and heads as small pictures: a row for each layer, a column for each head.

import { html, toggleButton } from "./dom.mjs";

/**
 * @import { RecordedRun } from "./data"
 * @import { Display } from "./display.mjs"
 * @import { RecordedWeights } from "./recorded_view.mjs"
 */

const MAX_PIXELS = 48; // along a side of a picture
const COLOR = [60, 110, 190];
const NEGATIVE_COLOR = [190, 30, 130];

/**
 * Draws a picture of each head, which selects it; null for a single head.
 *
 * @param {Display<RecordedRun>} display
 * @param {RecordedWeights} recorded
 */
export function overview({ id, state, change }, recorded) {
  const [L, N] = recorded.shape;
  if (L * N === 1) return null;
  const max = recorded.values.reduce((most, weight) => Math.max(most, Math.abs(weight)), 1e-9);
  const largest = recorded.values.some((weight) => weight < 0) ? "largest absolute weight" : "largest weight";
  const rows = Array.from({ length: L }, (_, l) => {
    const heads = Array.from({ length: N }, (_, n) => {
      const isSelected = state.layer === l && state.head === n;
      const select = () => change(isSelected ? { layer: null, head: null } : { layer: l, head: n });
      const button = toggleButton(`${id}-head-${l}-${n}`, isSelected, select, picture(recorded, l, n, max));
      button.title = `layer ${l + 1}, head ${n + 1}`;
      button.setAttribute("aria-label", button.title);
      return html("td", {}, button);
    });
    return html("tr", {}, html("th", { scope: "row" }, `layer ${l + 1}`), heads);
  });
  return html(
    "details",
    { class: "overview", open: true, "data-kept": `${id}-overview` },
    html("summary", {}, `All layers and heads (the darkest is the ${largest})`),
    html("div", { class: "scrolled", "data-kept": `${id}-heads` }, html("table", {}, rows)),
  );
}

/**
 * Draws the weights of a head. Each pixel is the strongest of the weights that it stands for.
 *
 * @param {RecordedWeights} recorded
 * @param {number} layer
 * @param {number} head
 * @param {number} max the largest absolute weight of all heads.
 */
function picture({ shape: [, N, T, S], values }, layer, head, max) {
  const [height, width] = [Math.min(T, MAX_PIXELS), Math.min(S, MAX_PIXELS)];
  const strongest = new Float32Array(height * width);
  const offset = (layer * N + head) * T * S;
  for (let t = 0; t < T; t++) {
    const row = Math.floor((t * height) / T) * width;
    for (let s = 0; s < S; s++) {
      const pixel = row + Math.floor((s * width) / S);
      const weight = values[offset + t * S + s];
      if (Math.abs(weight) > Math.abs(strongest[pixel])) strongest[pixel] = weight;
    }
  }
  const canvas = html("canvas", { width, height });
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser does not support canvas");
  const image = context.createImageData(width, height);
  strongest.forEach((weight, i) => {
    const color = weight < 0 ? NEGATIVE_COLOR : COLOR;
    image.data.set([...color, Math.round(255 * Math.sqrt(Math.abs(weight) / max))], 4 * i);
  });
  context.putImageData(image, 0, 0);
  return canvas;
}
