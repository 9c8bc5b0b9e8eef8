// The explanation of a step: its formulas and numbers, and the choices of the user.

import { html, toggleButton } from "./dom.mjs";
import { explain } from "./explain.mjs";
import { ellipsize, formatPercent, formatWeight } from "./format.mjs";
import { formulasOf, nextWordFormula } from "./formulas.mjs";
import { stageItem } from "./stage_item.mjs";
import { displayToken } from "./tokenizer.mjs";

/**
 * @import { Cell, LiveRun } from "./data"
 * @import { Display, TranslationDisplay } from "./display.mjs"
 * @import { WeightOverride } from "./url_state.mjs"
 */

const PAPER = "https://arxiv.org/abs/1409.0473";

/**
 * Draws the formulas of a step without numbers.
 *
 * @param {Display<LiveRun>} display
 */
export function overviewPanel({ run, state }) {
  return html(
    "section",
    { class: "panel", "aria-label": "how a step is computed" },
    html("h3", {}, state.compare === null ? "" : `${run.name}: `, "How a step is computed"),
    html(
      "p",
      { class: "hint" },
      "Select a word of the translation, or a cell, to see the numbers of its step.",
    ),
    html(
      "ol",
      { class: "stages" },
      formulasOf(run.shape).map((formula) => stageItem(formula)),
    ),
    sources(),
  );
}

/**
 * Draws the explanation of a cell.
 *
 * @param {TranslationDisplay} display
 * @param {Cell} cell
 */
export function stepPanel(display, cell) {
  const { run, translation } = display;
  const [t, s] = cell;
  const stages = explain(run.shape, translation, t, s);
  return html(
    "section",
    { class: "panel step", "aria-label": "how this step is computed" },
    heading(display, cell),
    translation.weights ? weightChoices(display, cell) : null,
    wordChoices(display, t),
    html(
      "ol",
      { class: "stages" },
      formulasOf(run.shape).map((formula) => stageItem(formula, stages[formula.name])),
    ),
    sources(),
  );
}

/**
 * @param {TranslationDisplay} display
 * @param {Cell} cell
 */
function heading({ run, translation, state, id, change }, [t, s]) {
  const weight = translation.weights?.[t][s];
  const title = [
    state.compare === null ? "" : `${run.name}: `,
    `Step ${t + 1}: “${ellipsize(translation.rows[t])}”`,
    weight === undefined ? "" : ` attends to “${ellipsize(translation.columns[s])}”`,
    weight === undefined ? null : html("span", { class: "number" }, ` ${formatWeight(weight)}`),
  ];
  const close = toggleButton(`${id}-close`, false, () => change({ cell: null }), "Close");
  close.removeAttribute("aria-pressed");
  return html("div", { class: "heading" }, html("h3", {}, title), close);
}

/**
 * Draws the choices of the attention weights of a step.
 *
 * @param {TranslationDisplay} display
 * @param {Cell} cell
 */
function weightChoices({ translation, state, id, change }, [t, s]) {
  const { [t]: _, ...others } = state.weightOverrides;
  const choice = (/** @type {string} */ label, /** @type {WeightOverride | undefined} */ override) => {
    const choose = () =>
      change({ weightOverrides: override === undefined ? others : { ...others, [t]: override } });
    const isPressed = translation.changes.weightOverrides[t] === override;
    return toggleButton(`${id}-weights-${override}`, isPressed, choose, label);
  };
  return html(
    "div",
    { class: "choices", role: "group", "aria-label": "attention weights" },
    html("span", {}, "Weights"),
    choice("computed", undefined),
    choice("uniform", "uniform"),
    choice(`all on “${ellipsize(translation.sourceTokens[s], 16)}”`, s),
  );
}

/**
 * Draws the most probable next words, as buttons that force a word.
 *
 * @param {TranslationDisplay} display
 * @param {number} t the target position.
 */
function wordChoices({ translation, state, id, change }, t) {
  const { token, candidates } = translation.steps[t];
  const hasBeams = translation.beamSize > 1;
  // Beam search also keeps the words before this one, because another hypothesis may be better with the new word.
  const previousWords = Object.entries(hasBeams ? translation.words : state.forcedWords);
  const kept = Object.fromEntries(previousWords.filter(([position]) => Number(position) < t));
  const buttons = candidates.map(({ token: candidate, probability }) => {
    const force = () => change({ forcedWords: { ...kept, [t]: candidate }, hypothesis: 0 });
    const word = html("span", {}, ellipsize(displayToken(candidate), 20));
    const percent = html("span", { class: "number" }, ` ${formatPercent(probability)}`);
    const button = toggleButton(`${id}-word-${candidate}`, token === candidate, force, word, percent);
    button.style.setProperty("--probability", probability.toFixed(3));
    return button;
  });
  const undo = () => change({ forcedWords: hasBeams ? {} : kept });
  const isForced = t in translation.changes.forcedWords;
  return [
    html(
      "p",
      { class: "choices-label" },
      "Next word, ",
      nextWordFormula(),
      "; choose instead: ",
      isForced ? toggleButton(`${id}-word-undo`, false, undo, "Undo") : null,
    ),
    html("div", { class: "candidates", role: "group", "aria-label": "next word" }, buttons),
  ];
}

/** Links to the formulas in the documentation and in the paper. */
function sources() {
  return html(
    "p",
    { class: "sources-line" },
    "Formulas: docs/tutorial.md, section 5; ",
    html("a", { href: PAPER }, "Bahdanau et al. 2015"),
    ", A.1.2 and A.2.2",
  );
}
