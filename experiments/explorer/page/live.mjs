// The part of the page in which a run translates.

import { addLights } from "./lights.mjs";
import { alignmentErrorRate } from "./alignment.mjs";
import { arcs } from "./arcs.mjs";
import { cutShort, html, signed, toggle } from "./dom.mjs";
import { map } from "./map.mjs";
import { argmax } from "./numbers.mjs";
import { stage } from "./stage.mjs";
import { strengthsOf } from "./strengths.mjs";
import { firstSteps, isSame, wordsOf } from "./translated.mjs";
import { tree } from "./tree.mjs";
import { plain, wordOf } from "./words.mjs";

/**
 * Returns what a run makes of a state's text.
 *
 * @param {object} run of the page's data.
 * @param {object | null} whole what `translated` has found.
 * @param {number} step of the checkpoint that found it.
 * @param {object} state
 * @param {string} place of the run on the page, in keys.
 * @param {(changed: object, burst?: string) => void} change
 * @returns {{article: Element, panel: Element | null}} and the panel of the step that is open.
 */
export function live(run, whole, step, state, place, change) {
  const about = ` ${run.summary}, step ${step.toLocaleString("en")}`;
  const title = html("h2", {}, run.name, html("small", {}, about));
  if (!whole) {
    const told = "Nothing to translate yet: write a sentence above, or choose an example.";
    return { article: html("article", {}, title, html("p", {}, told)), panel: null };
  }
  const found = firstSteps(run, whole, state.shown ?? Infinity);
  const example = run.examples.find(({ source }) => source === state.text.trim());
  const isTrue = Boolean(example?.target) && found.rows.length > 0 && isSame(run, found, example.target);
  const links = ((isTrue && example.links) || []).filter(([t]) => t < found.rows.length);
  const isThere = state.cell && state.cell[0] < found.rows.length && state.cell[1] < found.columns.length;
  const cell = isThere ? state.cell : null;
  const article = html(
    "article",
    {},
    title,
    words(found, whole, cell, place, change),
    html("p", { class: "text" }, found.text, found.isWhole ? null : ending(whole.text.slice(found.text.length))),
    html("p", { class: "facts" }, facts(run, found, state)),
    truth(run, found, example, isTrue, links, place, change),
    found.levels.length ? beams(run, whole, found, state, place, change) : null,
    drawn(whole, found, links, cell, state, place, change),
  );
  if (found.weights) addLights(article, strengthsOf(found.weights), cell);
  return { article, panel: cell ? stage(run, found, { ...state, cell }, place, change) : null };
}

/** Returns the map or the arcs of a translation's first steps. */
function drawn(whole, found, links, cell, state, place, change) {
  if (!found.weights) return html("p", {}, "No attention: nothing to draw. Choose a word to see what may come next.");
  if (!found.rows.length) return null;
  const choose = (next, burst) => change({ cell: next }, burst);
  const given = { ...found, links, cell, choose, place, room: whole.rows.length };
  return state.view === "arcs" ? arcs(given) : map(given);
}

/** Returns an element that has room for what is not shown yet, so that no step moves what stands below. */
function later(...children) {
  return html("span", { class: "later", "aria-hidden": "true" }, ...children);
}

/** Returns an ellipsis in front of the rest of a text, which is not shown yet. */
function ending(rest) {
  return [html("span", { class: "ellipsis" }, " …"), later(rest)];
}

/** Returns the words of the source, which can be hidden, and of the translation, whose steps can be opened. */
function words(found, whole, cell, place, change) {
  const hide = (s) => () => {
    const { masked } = found.applied;
    const others = masked.filter((each) => each !== s);
    change({ masked: others.length < masked.length ? others : [...others, s].sort((a, b) => a - b) });
  };
  const sources = found.tokens.map((word, s) =>
    button(`${place}-source-${s}`, word, found.applied.masked.includes(s), hide(s), {
      "data-source": s,
      title: found.applied.masked.includes(s) ? `look at “${word}” again` : `hide “${word}” from the looking`,
    }),
  );
  const targets = found.rows.map((word, t) => {
    const best = found.weights ? argmax(found.weights[t]) : 0;
    return button(`${place}-target-${t}`, word, cell?.[0] === t, () => change({ cell: [t, best] }), {
      "data-target": t,
      title: "what this step computes",
    });
  });
  return html(
    "div",
    { class: "sides" },
    found.weights
      ? [html("span", {}, "Source, hide:"), html("div", { class: "words sources" }, sources)]
      : null,
    html("span", {}, "Translation, open:"),
    html("div", { class: "words targets" }, targets, whole.rows.slice(targets.length).map((word) => later(cutShort(word)))),
  );
}

function button(key, word, isDown, onclick, attributes) {
  const element = toggle(key, isDown, onclick, cutShort(word));
  element.classList.add("word");
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Says what a person should know of a translation. */
function facts(run, found, state) {
  const what = found.beamSize > 1 && found.isWhole ? "log-probability over length" : "log-probability";
  const said = [`${what} ${signed(found.score, 3)}`];
  if (!found.isWhole) said[0] += `, of the ${plural(found.rows.length, "step")} shown`;
  if (found.isCut) said.push(`cut at ${run.max_length} tokens`);
  if (found.unknown.length) said.push(`unknown words: ${found.unknown.join(" ")}`);
  if (found.leftOut) said.push(`${found.leftOut} further tokens of the sentence are left out`);
  if (found.notTaken.length) said.push(`no words of this model: ${found.notTaken.map(plain).join(" ")}`);
  if (found.beamSize > 1 && state.temperature) said.push("with beams there is no temperature");
  if (run.longest && found.tokens.length - 1 > run.longest) {
    said.push(`longer than any sentence in training, ${run.longest} tokens`);
  }
  said.push(...hiding(found.tokens.length, found.applied.masked));
  return said.join(" · ");
}

/** Says what hidden words are, of so many tokens with the end. */
function hiding(numTokens, masked) {
  if (!masked.length) return [];
  if (masked.length === numTokens) return ["all source words are hidden: all weights are 0, nothing is looked at"];
  const areAll = masked.length === numTokens - 1 && !masked.includes(numTokens - 1);
  if (areAll) return ["all source words are hidden: only the end is left to look at"];
  return ["hidden words are not looked at; the encoder has read them"];
}

function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** Says whether a translation, as far as it is shown, is the true one, and how well it is aligned, if known. */
function truth(run, found, example, isTrue, links, place, change) {
  const told = (...children) => html("p", { class: "truth" }, ...children);
  if (!example?.target) return told("The true translation of this sentence is not known here.");
  if (!found.rows.length) return told("No word is shown yet.");
  if (!isTrue) {
    const read = () => change({ words: wordsOf(run, example.target), beam: 1, cell: null });
    return told(
      `True translation: ${example.target} `,
      toggle(`${place}-truth`, false, read, "let it read this one"),
    );
  }
  const begins = found.isWhole ? "This is the true translation." : "The true translation begins so.";
  if (!found.weights || !example.links) return told(begins);
  const rate = alignmentErrorRate(found.weights, links, found.isWhole);
  const said = rate === null ? "none" : rate.toFixed(2);
  const meaning = "(0: each word looks most where it should); outlined are true links.";
  return told(`${begins} Alignment error ${said} ${meaning}`);
}

function beams(run, whole, found, state, place, change) {
  const name = (node) => plain(wordOf(run.target, node.token));
  const chosen = Math.min(state.hypothesis, found.hypotheses.length - 1);
  const items = found.hypotheses.map((hypothesis, i) => {
    const text = `${hypothesis.steps.map(name).join(" ")}${hypothesis.isCut ? " …" : ""} `;
    const score = html("span", { class: "number" }, signed(hypothesis.score, 3));
    const choose = () => change({ hypothesis: i, cell: null });
    return html("li", {}, toggle(`${place}-hypothesis-${i}`, i === chosen, choose, text, score));
  });
  return html(
    "details",
    { class: "beams", open: true, "data-kept": `${place}-beams` },
    html(
      "summary",
      {},
      found.isWhole
        ? `${items.length} translations, the best first, and the tree of the search`
        : "the tree of the search, as far as it is shown",
    ),
    found.isWhole ? html("ol", {}, items) : null,
    tree(found.levels, new Set(whole.steps), name, place),
  );
}
