// The tree of a beam search: from left to right the steps, and at each the hypotheses that were kept.

import { html, svg } from "./dom.mjs";

const [WIDTH, HEIGHT, MARGIN] = [92, 24, 14];

/**
 * Returns the tree.
 *
 * @param {object[][]} levels of `beam` of search.mjs.
 * @param {Set<object>} path the nodes of the hypothesis that is shown.
 * @param {(node: object) => string} wordOf
 * @param {string} place of the run on the page, in keys.
 */
export function tree(levels, path, wordOf, place) {
  const places = new Map();
  levels.forEach((nodes, t) =>
    nodes.forEach((node, k) => places.set(node, [MARGIN + t * WIDTH, MARGIN + k * HEIGHT])),
  );
  const widest = Math.max(1, ...levels.map((nodes) => nodes.length));
  const nodes = [...places].map(([node, [x, y]]) => {
    const from = places.get(node.parent);
    const kept = path.has(node) ? "kept" : "left";
    return [
      from
        ? svg("path", { d: `M ${from[0] + WIDTH - 24} ${from[1]} L ${x - 4} ${y}`, class: `branch ${kept}` })
        : null,
      svg(
        "text",
        { x, y: y + 4, class: `node ${kept}` },
        wordOf(node).slice(0, 9),
        svg("title", {}, `${wordOf(node)}: log-probability ${node.score.toFixed(2)}`),
      ),
    ];
  });
  return html(
    "div",
    { class: "scrolled", "data-kept": `${place}-tree` },
    svg(
      "svg",
      {
        width: 2 * MARGIN + levels.length * WIDTH,
        height: 2 * MARGIN + widest * HEIGHT,
        role: "img",
        "aria-label":
          `the beam search in ${levels.length} steps, at most ${widest} hypotheses at each; ` +
          "those that ended are listed above",
      },
      nodes,
    ),
  );
}
