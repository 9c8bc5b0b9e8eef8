// The hypotheses and the tree of a beam search.

import { html, svg, toggleButton } from "./dom.mjs";
import { formatCount, formatNumber } from "./format.mjs";

/**
 * @import { TranslationDisplay } from "./display.mjs"
 * @import { TreeNode } from "./translation.mjs"
 */

const [WIDTH, HEIGHT, MARGIN] = [92, 24, 14]; // pixels of a node, and around the tree
const MAX_WORD_LENGTH = 9;
const CHARACTER_WIDTH = 7.5;

/**
 * Draws a beam search; null without one.
 *
 * @param {TranslationDisplay} display
 */
export function beamView(display) {
  const { translation, id } = display;
  if (!translation.levels.length) return null;
  const numFinished = translation.hypotheses.filter(({ isTruncated }) => !isTruncated).length;
  const summary = translation.isComplete
    ? `${formatCount(numFinished, "finished translation")}, best first`
    : "Search tree of the steps shown";
  return html(
    "details",
    { class: "beams", open: true, "data-kept": `${id}-beams` },
    html("summary", {}, summary),
    translation.isComplete ? html("ol", {}, hypothesisList(display)) : null,
    tree(translation.levels, `${id}-tree`),
  );
}

/** @param {TranslationDisplay} display */
function hypothesisList({ translation, state, id, change }) {
  const selected = Math.min(state.hypothesis, translation.hypotheses.length - 1);
  return translation.hypotheses.map(({ tokens, score, isTruncated }, i) => {
    const text = `${tokens.join(" ")}${isTruncated ? " …" : ""} `;
    const number = html("span", { class: "number" }, formatNumber(score, 3));
    const select = () => change({ hypothesis: i, cell: null });
    return html("li", {}, toggleButton(`${id}-hypothesis-${i}`, i === selected, select, text, number));
  });
}

/**
 * Draws the tree, with a column for each step.
 *
 * @param {TreeNode[][]} levels
 * @param {string} key for its scroll position.
 */
function tree(levels, key) {
  const x = (/** @type {number} */ t) => MARGIN + t * WIDTH;
  const y = (/** @type {number} */ k) => MARGIN + k * HEIGHT;
  const nodes = levels.map((level, t) =>
    level.map(({ token, logProbability, parent, isSelected }, k) => {
      const kind = isSelected ? "selected" : "other";
      const title = svg("title", {}, `${token}: log-probability ${formatNumber(logProbability)}`);
      const word = svg("text", { x: x(t), y: y(k) + 4, class: `node ${kind}` }, shorten(token), title);
      if (parent === null) return word;
      const start = x(t - 1) + CHARACTER_WIDTH * shorten(levels[t - 1][parent].token).length + 4;
      const line = `M ${start} ${y(parent)} L ${x(t) - 4} ${y(k)}`;
      return [svg("path", { d: line, class: `branch ${kind}` }), word];
    }),
  );
  const maxNodes = Math.max(1, ...levels.map((level) => level.length));
  const label = `beam search tree: ${levels.length} steps with at most ${maxNodes} hypotheses each`;
  const [width, height] = [2 * MARGIN + levels.length * WIDTH, 2 * MARGIN + maxNodes * HEIGHT];
  return html(
    "div",
    { class: "scrolled", "data-kept": key },
    svg("svg", { class: "tree", width, height, role: "img", "aria-label": label }, nodes),
  );
}

/** @param {string} word */
function shorten(word) {
  return word.slice(0, MAX_WORD_LENGTH);
}
