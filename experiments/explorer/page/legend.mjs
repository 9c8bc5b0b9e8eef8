// The legend of a heatmap or of arcs.

import { html } from "./dom.mjs";
import { describeRange } from "./weight_range.mjs";

/** @import { Grid } from "./display.mjs" */

/**
 * @param {Grid} grid
 * @param {"heatmap" | "arcs"} view
 */
export function legend({ weights, links }, view) {
  const range = describeRange(weights);
  const isMap = view === "heatmap";
  const hasNegative = weights.some((row) => row.some((weight) => weight < 0));
  return html(
    "ul",
    { class: "legend" },
    isMap && !range ? html("li", {}, "weight 0 ", html("span", { class: "scale" }), " 1") : null,
    hasNegative ? item("negative", "negative weight") : null,
    links.length ? item(isMap ? "true" : "true-line", "true alignment") : null,
    range ? html("li", {}, range) : null,
  );
}

/**
 * @param {string} kind
 * @param {string} label
 */
function item(kind, label) {
  return html("li", {}, html("span", { class: `swatch ${kind}` }), ` ${label}`);
}
