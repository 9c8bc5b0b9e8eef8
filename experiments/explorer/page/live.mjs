// The part of the page in which a run translates.

import { addLights } from "./lights.mjs";
import { alignmentErrorRate } from "./alignment.mjs";
import { arcs } from "./arcs.mjs";
import { html, signed, toggle } from "./dom.mjs";
import { map } from "./map.mjs";
import { argmax } from "./numbers.mjs";
import { stage } from "./stage.mjs";
import { isSame, wordsOf } from "./translated.mjs";
import { tree } from "./tree.mjs";
import { join, plain, wordOf } from "./words.mjs";

/**
 * Returns what a run makes of a state's text.
 *
 * @param {object} run of the page's data.
 * @param {object | null} found by `translated`.
 * @param {number} step of the checkpoint that found it.
 * @param {object} state
 * @param {string} place of the run on the page, in keys.
 * @param {(changed: object) => void} change
 */
export function live(run, found, step, state, place, change) {
  const about = ` ${run.summary}, step ${step.toLocaleString("en")}`;
  const title = html("h2", {}, run.name, html("small", {}, about));
  if (!found) {
    const told = "Nothing to translate yet: write a sentence above, or choose an example.";
    return html("article", {}, title, html("p", {}, told));
  }
  const example = run.examples.find(({ source }) => source === state.text.trim());
  const count = Math.min(state.shown ?? found.rows.length, found.rows.length);
  const isTrue = Boolean(example?.target) && isSame(run, found, example.target);
  const isThere = state.cell && state.cell[0] < count && state.cell[1] < found.columns.length;
  const cell = isThere ? state.cell : null;
  const given = {
    weights: found.weights?.slice(0, count),
    rows: found.rows.slice(0, count),
    columns: found.columns,
    links: ((isTrue && example.links) || []).filter(([t]) => t < count),
    cell,
    choose: (next) => change({ cell: next }),
    place,
  };
  const article = html(
    "article",
    {},
    title,
    words(found, count, cell, place, change),
    html("p", { class: "text" }, textOf(run, found, count)),
    html("p", { class: "facts" }, facts(run, found, state)),
    truth(run, found, example, isTrue, place, change),
    found.levels.length ? beams(run, found, state, place, change) : null,
    found.weights && count ? (state.view === "arcs" ? arcs(given) : map(given)) : null,
    found.weights
      ? null
      : html("p", {}, "No attention: nothing to draw. Choose a word to see what may come next."),
    cell ? stage(run, found, { ...state, cell }, place, change) : null,
  );
  if (found.weights) addLights(article, found.weights, cell);
  return article;
}

/** Returns the words of the source, which can be hidden, and of the translation, whose steps can be opened. */
function words(found, count, cell, place, change) {
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
  const targets = found.rows.slice(0, count).map((word, t) => {
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
    html("div", { class: "words targets" }, targets),
  );
}

function button(key, word, isDown, onclick, attributes) {
  const element = toggle(key, isDown, onclick, word);
  element.classList.add("word");
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function textOf(run, found, count) {
  return count < found.rows.length ? `${join(run.target, found.words.slice(0, count))} …` : found.text;
}

/** Says what a person should know of a translation. */
function facts(run, found, state) {
  const said = [
    found.beamSize > 1
      ? `log-probability over length ${signed(found.score, 3)}`
      : `log-probability ${signed(found.score, 3)}`,
  ];
  if (found.isCut) said.push(`cut at ${run.max_length} tokens`);
  if (found.unknown.length) said.push(`unknown words: ${found.unknown.join(" ")}`);
  if (found.leftOut) said.push(`${found.leftOut} further tokens of the sentence are left out`);
  if (found.notTaken.length) said.push(`no words of this model: ${found.notTaken.map(plain).join(" ")}`);
  if (found.beamSize > 1 && state.temperature) said.push("with beams there is no temperature");
  if (run.longest && found.tokens.length - 1 > run.longest) {
    said.push(`longer than any sentence in training, ${run.longest} tokens`);
  }
  if (found.applied.masked.length) said.push("hidden words are not looked at; the encoder has read them");
  return said.join(" · ");
}

/** Says whether a translation is the true one, and how well it is aligned, if that is known. */
function truth(run, found, example, isTrue, place, change) {
  const told = (...children) => html("p", { class: "truth" }, ...children);
  if (!example?.target) return told("The true translation of this sentence is not known here.");
  if (!isTrue) {
    const read = () => change({ words: wordsOf(run, example.target), beam: 1, cell: null });
    return told(
      `True translation: ${example.target} `,
      toggle(`${place}-truth`, false, read, "let it read this one"),
    );
  }
  const rate = found.weights && example.links ? alignmentErrorRate(found.weights, example.links) : null;
  return told(
    "This is the true translation.",
    rate === null
      ? null
      : ` Alignment error ${rate.toFixed(2)} (0: each word looks most where it should); outlined are true links.`,
  );
}

function beams(run, found, state, place, change) {
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
      `${items.length} translations that ended, the best first, and the tree of the search`,
    ),
    html("ol", {}, items),
    tree(found.levels, new Set(found.hypotheses[chosen].steps), name, place),
  );
}
