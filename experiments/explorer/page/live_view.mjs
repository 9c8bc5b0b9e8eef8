// The part of the page in which a run translates.

import { arcs } from "./arcs.mjs";
import { beamTree } from "./beam_tree.mjs";
import { withTranslation } from "./display.mjs";
import { cutShort, html, signed, toggle } from "./dom.mjs";
import { heatmap } from "./heatmap.mjs";
import { addHighlight } from "./highlight.mjs";
import { argmax } from "./linalg.mjs";
import { alignmentErrorRate } from "./metrics.mjs";
import { stepPanel } from "./step_panel.mjs";
import { strengthsOf } from "./strengths.mjs";
import { plain, wordOf } from "./tokenizer.mjs";
import { isSame, wordsOf } from "./translation.mjs";

/**
 * @import { Cell, LiveRun } from "./data"
 * @import { Display, TranslationDisplay, View } from "./display.mjs"
 * @import { Child } from "./dom.mjs"
 * @import { Translation } from "./translation.mjs"
 *
 * @typedef {object} Reference the true translation of a text.
 * @property {string} text
 * @property {boolean} isMatched whether the translation, as far as it is shown, is the same.
 * @property {Cell[] | null} links of the words that are shown, if known and matched.
 */

/**
 * Draws a run and its translation of the state's text.
 *
 * @param {Display<LiveRun>} display
 * @param {number} step of the checkpoint that translated.
 * @param {Translation | null} whole null for a text without words.
 * @returns {View}
 */
export function liveView(display, step, whole) {
  const { run } = display;
  const about = ` ${run.summary}, step ${step.toLocaleString("en")}`;
  const title = html("h2", {}, run.name, html("small", {}, about));
  if (whole) return translationView(withTranslation(display, whole), title);
  const message = "Nothing to translate yet: write a sentence above, or choose an example.";
  return { article: html("article", {}, title, html("p", {}, message)), panel: null, spoken: "" };
}

/**
 * @param {TranslationDisplay} display
 * @param {Element} title
 * @returns {View}
 */
function translationView(display, title) {
  const { translation, cell } = display;
  const reference = referenceOf(display);
  const article = html(
    "article",
    {},
    title,
    words(display),
    text(display),
    html("p", { class: "facts" }, facts(display)),
    html("p", { class: "truth" }, truth(display, reference)),
    beams(display),
    attention(display, reference?.links ?? []),
  );
  if (translation.weights) addHighlight(article, strengthsOf(translation.weights), cell);
  const spoken = translation.isWhole ? translation.text : `${translation.text} …`;
  return { article, panel: cell && stepPanel(display, cell), spoken };
}

/**
 * Returns the true translation, if it is known.
 *
 * @param {TranslationDisplay} display
 * @returns {Reference | null}
 */
function referenceOf({ run, translation, state }) {
  const example = run.examples.find(({ source }) => source === state.text.trim());
  if (!example?.target) return null;
  const numRows = translation.rows.length;
  const isMatched = numRows > 0 && isSame(run, translation, example.target);
  const links = isMatched && example.links ? example.links.filter(([t]) => t < numRows) : null;
  return { text: example.target, isMatched, links };
}

/**
 * Draws the attention weights, as a map or as arcs.
 *
 * @param {TranslationDisplay} display
 * @param {Cell[]} links true ones.
 */
function attention(display, links) {
  const { translation, whole, cell, state } = display;
  const { weights, rows, columns } = translation;
  if (!weights)
    return html("p", {}, "No attention: nothing to draw. Choose a word to see what may come next.");
  if (!rows.length) return null;
  const grid = { weights, rows, columns, links, cell, room: whole.rows.length };
  return state.view === "arcs" ? arcs(display, grid) : heatmap(display, grid);
}

/**
 * Returns an element that takes the room of what is not shown yet, so that no step moves what stands below.
 *
 * @param {string} hidden
 */
function later(hidden) {
  return html("span", { class: "later", "aria-hidden": "true" }, hidden);
}

/**
 * Draws the text of a translation. An ellipsis stands in front of the rest, which is not shown yet.
 *
 * @param {TranslationDisplay} display
 */
function text({ translation, whole }) {
  const rest = whole.text.slice(translation.text.length);
  const ending = translation.isWhole ? null : [html("span", { class: "ellipsis" }, " …"), later(rest)];
  return html("p", { class: "text" }, translation.text, ending);
}

/**
 * Draws the words of the source, which can be hidden, and of the translation, whose steps can be opened.
 *
 * @param {TranslationDisplay} display
 */
function words(display) {
  const { translation, whole } = display;
  const rest = whole.rows.slice(translation.rows.length).map((word) => later(cutShort(word)));
  return html(
    "div",
    { class: "sides" },
    translation.weights
      ? [html("span", {}, "Source, hide:"), html("div", { class: "words sources" }, sourceWords(display))]
      : null,
    html("span", {}, "Translation, open:"),
    html("div", { class: "words targets" }, targetWords(display), rest),
  );
}

/** @param {TranslationDisplay} display */
function sourceWords({ translation, id, change }) {
  const { masked } = translation.applied;
  return translation.tokens.map((word, s) => {
    const isHidden = masked.includes(s);
    const others = masked.filter((each) => each !== s);
    const hide = () => change({ masked: isHidden ? others : [...others, s].sort((a, b) => a - b) });
    return wordButton(`${id}-source-${s}`, word, isHidden, hide, {
      "data-source": s,
      title: isHidden ? `look at “${word}” again` : `hide “${word}” from the looking`,
    });
  });
}

/** @param {TranslationDisplay} display */
function targetWords({ translation, cell, id, change }) {
  return translation.rows.map((word, t) => {
    const best = translation.weights ? argmax(translation.weights[t]) : 0;
    const open = () => change({ cell: [t, best] });
    return wordButton(`${id}-target-${t}`, word, cell?.[0] === t, open, {
      "data-target": t,
      title: "what this step computes",
    });
  });
}

/**
 * @param {string} key
 * @param {string} word
 * @param {boolean} isDown
 * @param {() => void} onClick
 * @param {Record<string, string | number>} attributes
 */
function wordButton(key, word, isDown, onClick, attributes) {
  const button = toggle(key, isDown, onClick, cutShort(word));
  button.classList.add("word");
  for (const [name, value] of Object.entries(attributes)) button.setAttribute(name, String(value));
  return button;
}

/**
 * Returns what a user should know of a translation.
 *
 * @param {TranslationDisplay} display
 */
function facts({ run, translation, state }) {
  const { beamSize, isWhole, leftOut, notTaken, unknown } = translation;
  const what = beamSize > 1 && isWhole ? "log-probability over length" : "log-probability";
  const of = isWhole ? "" : `, of the ${plural(translation.rows.length, "step")} shown`;
  const facts = [`${what} ${signed(translation.score, 3)}${of}`];
  if (translation.isCut) facts.push(`cut at ${run.max_length} tokens`);
  if (unknown.length) facts.push(`unknown words: ${unknown.join(" ")}`);
  if (leftOut) facts.push(`${leftOut} further tokens of the sentence are left out`);
  if (notTaken.length) facts.push(`no words of this model: ${notTaken.map(plain).join(" ")}`);
  if (beamSize > 1 && state.temperature) facts.push("with beams there is no temperature");
  if (run.longest && translation.tokens.length - 1 > run.longest) {
    facts.push(`longer than any sentence in training, ${run.longest} tokens`);
  }
  facts.push(...hiding(translation.tokens.length, translation.applied.masked));
  return facts.join(" · ");
}

/**
 * Returns what hidden words mean.
 *
 * @param {number} numTokens of the source, with the end.
 * @param {number[]} masked
 */
function hiding(numTokens, masked) {
  if (!masked.length) return [];
  if (masked.length === numTokens)
    return ["all source words are hidden: all weights are 0, nothing is looked at"];
  const areAll = masked.length === numTokens - 1 && !masked.includes(numTokens - 1);
  if (areAll) return ["all source words are hidden: only the end is left to look at"];
  return ["hidden words are not looked at; the encoder has read them"];
}

/**
 * @param {number} count
 * @param {string} noun
 */
function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/**
 * Returns whether a translation, as far as it is shown, is the true one, and how well it is aligned, if known.
 *
 * @param {TranslationDisplay} display
 * @param {Reference | null} reference
 * @returns {Child}
 */
function truth({ run, translation, id, change }, reference) {
  if (!reference) return "The true translation of this sentence is not known here.";
  if (!translation.rows.length) return "No word is shown yet.";
  if (!reference.isMatched) {
    const read = () => change({ words: wordsOf(run, reference.text), beam: 1, cell: null });
    return [
      `True translation: ${reference.text} `,
      toggle(`${id}-truth`, false, read, "let it read this one"),
    ];
  }
  const begins = translation.isWhole ? "This is the true translation." : "The true translation begins so.";
  if (!translation.weights || !reference.links) return begins;
  const rate = alignmentErrorRate(translation.weights, reference.links, translation.isWhole);
  const meaning = "(0: each word looks most where it should); outlined are true links.";
  return `${begins} Alignment error ${rate === null ? "none" : rate.toFixed(2)} ${meaning}`;
}

/**
 * Draws the hypotheses and the tree of a beam search.
 *
 * @param {TranslationDisplay} display
 */
function beams(display) {
  const { run, translation, whole, id } = display;
  if (!translation.levels.length) return null;
  const name = (/** @type {{token: number}} */ { token }) => plain(wordOf(run.target, token));
  const numHypotheses = translation.hypotheses.length;
  return html(
    "details",
    { class: "beams", open: true, "data-kept": `${id}-beams` },
    html(
      "summary",
      {},
      translation.isWhole
        ? `${numHypotheses} translations, the best first, and the tree of the search`
        : "the tree of the search, as far as it is shown",
    ),
    translation.isWhole ? html("ol", {}, hypotheses(display, name)) : null,
    beamTree(translation.levels, new Set(whole.steps), name, `${id}-tree`),
  );
}

/**
 * @param {TranslationDisplay} display
 * @param {(step: {token: number}) => string} name
 */
function hypotheses({ translation, state, id, change }, name) {
  const selected = Math.min(state.hypothesis, translation.hypotheses.length - 1);
  return translation.hypotheses.map(({ steps, score, isCut }, i) => {
    const words = `${steps.map(name).join(" ")}${isCut ? " …" : ""} `;
    const number = html("span", { class: "number" }, signed(score, 3));
    const select = () => change({ hypothesis: i, cell: null });
    return html("li", {}, toggle(`${id}-hypothesis-${i}`, i === selected, select, words, number));
  });
}
