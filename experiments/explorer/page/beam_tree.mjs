// The tree of a beam search: from left to right the steps, and at each the hypotheses that were kept.

import { html, svg } from "./dom.mjs";

/** @import { Node, Root, TokenStep } from "./search.mjs" */

const [WIDTH, HEIGHT, MARGIN] = [92, 24, 14];

/**
 * Draws the tree.
 *
 * @param {Node[][]} levels
 * @param {Set<TokenStep>} path the nodes of the hypothesis that is shown.
 * @param {(node: Node) => string} wordOf
 * @param {string} key by which it stays scrolled.
 */
export function beamTree(levels, path, wordOf, key) {
  /** @type {Map<Root | null, [number, number]>} */
  const places = new Map();
  for (const [t, nodes] of levels.entries()) {
    for (const [k, node] of nodes.entries()) places.set(node, [MARGIN + t * WIDTH, MARGIN + k * HEIGHT]);
  }
  const drawn = levels.flat().map((node) => {
    const [x, y] = places.get(node) ?? [0, 0];
    const from = places.get(node.parent);
    const kept = path.has(node) ? "kept" : "left";
    const title = svg("title", {}, `${wordOf(node)}: log-probability ${node.score.toFixed(2)}`);
    return [
      from
        ? svg("path", { d: `M ${from[0] + WIDTH - 24} ${from[1]} L ${x - 4} ${y}`, class: `branch ${kept}` })
        : null,
      svg("text", { x, y: y + 4, class: `node ${kept}` }, wordOf(node).slice(0, 9), title),
    ];
  });
  const widest = Math.max(1, ...levels.map((nodes) => nodes.length));
  return html(
    "div",
    { class: "scrolled", "data-kept": key },
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
      drawn,
    ),
  );
}
