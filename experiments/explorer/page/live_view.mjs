// The view of a run that translates.

import { arcs } from "./arcs.mjs";
import { beamView } from "./beam_view.mjs";
import { strongestCell, withTranslation } from "./display.mjs";
import { html, toggleButton } from "./dom.mjs";
import { describeFacts } from "./facts.mjs";
import { ellipsize } from "./format.mjs";
import { heatmap, isTable } from "./heatmap.mjs";
import { addHighlight } from "./highlight.mjs";
import { describeReference, referenceOf } from "./reference.mjs";
import { overviewPanel, stepPanel } from "./step_panel.mjs";
import { strengthsOf } from "./weight_range.mjs";

/**
 * @import { Cell, LiveRun } from "./data"
 * @import { Display, Grid, TranslationDisplay, View, WordActions } from "./display.mjs"
 * @import { Translation } from "./translation.mjs"
 */

const ALIGNMENT_ERROR =
  "Alignment error 0: the strongest weights are the true alignment. 1: none of them is.";

/**
 * Draws a run and its translation of the text.
 *
 * @param {Display<LiveRun>} display
 * @param {number} step the training step of the checkpoint.
 * @param {Translation | null} whole null for a text without words.
 * @returns {View}
 */
export function liveView(display, step, whole) {
  const { run } = display;
  const summary = ` ${run.summary}, step ${step.toLocaleString("en")}`;
  const title = html("h2", {}, run.name, html("small", {}, summary));
  if (whole) return translationView(withTranslation(display, whole), title);
  const message = html("p", {}, "Nothing to translate: enter a sentence, or choose an example.");
  return { article: html("article", {}, title, message), panel: overviewPanel(display), spoken: "" };
}

/**
 * @param {TranslationDisplay} display
 * @param {Element} title
 * @returns {View}
 */
function translationView(display, title) {
  const { translation, cell, state } = display;
  const reference = referenceOf(display);
  const article = html(
    "article",
    {},
    title,
    text(display),
    html(
      "div",
      { class: "notes" },
      html("p", { class: "facts" }, describeFacts(display)),
      html("p", { class: "reference", title: ALIGNMENT_ERROR }, describeReference(display, reference)),
    ),
    attention(display, reference?.links ?? []),
    beamView(display),
  );
  if (translation.weights) {
    const last = state.numShown === null ? 0 : translation.rows.length;
    addHighlight(article, strengthsOf(translation.weights), cell, last ? { t: last - 1 } : null);
  }
  const spoken = translation.isComplete ? translation.text : `${translation.text} …`;
  return { article, panel: cell ? stepPanel(display, cell) : overviewPanel(display), spoken };
}

/**
 * Draws the text of the translation. The words that are not shown yet keep their space, so that nothing moves.
 *
 * @param {TranslationDisplay} display
 */
function text({ translation, whole }) {
  const rest = whole.text.slice(translation.text.length);
  const ellipsis = html("span", { class: "ellipsis" }, " …");
  return html(
    "p",
    { class: "text" },
    translation.text,
    translation.isComplete ? null : [ellipsis, html("span", { class: "later", "aria-hidden": "true" }, rest)],
  );
}

/**
 * Draws the attention weights.
 *
 * @param {TranslationDisplay} display
 * @param {Cell[]} links the true alignment.
 */
function attention(display, links) {
  const { translation, whole, cell, state } = display;
  const { weights, rows, sourceTokens: columns } = translation;
  const actions = wordActions(display);
  if (!weights) return [html("p", {}, "This model has no attention."), targetWords(display, actions)];
  const hiddenRows = whole.rows.slice(rows.length);
  /** @type {Grid} */
  const grid = { weights, rows, columns, hiddenRows, links, cell, actions };
  if (state.view === "arcs") return arcs(display, grid);
  if (isTable(grid)) return heatmap(display, grid);
  return [sourceWords(display, actions), targetWords(display, actions), heatmap(display, grid)];
}

/**
 * @param {TranslationDisplay} display
 * @returns {WordActions}
 */
function wordActions({ translation, cell, change }) {
  const { masked } = translation.changes;
  return {
    masked,
    hide: (s) => {
      const others = masked.filter((position) => position !== s);
      const isHidden = others.length < masked.length;
      change({ masked: isHidden ? others : [...masked, s].sort((a, b) => a - b) });
    },
    open: (t) => change({ cell: cell?.[0] === t ? null : strongestCell(translation, t) }),
  };
}

/**
 * Draws the source words as buttons, for a heatmap that is too large for words that are buttons.
 *
 * @param {TranslationDisplay} display
 * @param {WordActions} actions
 */
function sourceWords({ translation, id }, { masked, hide }) {
  const buttons = translation.sourceTokens.map((word, s) => {
    const button = toggleButton(`${id}-source-${s}`, masked.includes(s), () => hide(s), ellipsize(word));
    button.dataset.source = String(s);
    return button;
  });
  return html(
    "div",
    { class: "words sources" },
    html("span", {}, "Source (click a word to hide it)"),
    buttons,
  );
}

/**
 * Draws the words of the translation as buttons.
 *
 * @param {TranslationDisplay} display
 * @param {WordActions} actions
 */
function targetWords({ translation, cell, id }, { open }) {
  const buttons = translation.rows.map((word, t) => {
    const button = toggleButton(`${id}-target-${t}`, cell?.[0] === t, () => open(t), ellipsize(word));
    button.dataset.target = String(t);
    return button;
  });
  const label = html("span", {}, "Translation (click a word for details)");
  return html("div", { class: "words targets" }, label, buttons);
}
