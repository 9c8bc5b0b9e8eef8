// The panel of a step: what it computes, in numbers, and what the user may change of it.

import { cutShort, html, share, signed, toggle } from "./dom.mjs";
import { explain } from "./explain.mjs";
import { dot, largest } from "./linalg.mjs";
import { plain, wordOf } from "./tokenizer.mjs";

/**
 * @import { Cell } from "./data"
 * @import { TranslationDisplay } from "./display.mjs"
 * @import { Stage, Term } from "./explain.mjs"
 * @import { Vector } from "./linalg.mjs"
 * @import { Row } from "./url_state.mjs"
 */

const NUMBERS = 6;
const CANDIDATES = 6;

/**
 * Draws the panel of a cell.
 *
 * @param {TranslationDisplay} display
 * @param {Cell} cell
 */
export function stepPanel(display, cell) {
  const { translation } = display;
  const [t, s] = cell;
  const { applied, model, source } = translation;
  const changes = { masked: applied.masked, row: applied.rows[t] };
  const stages = explain(model, translation.steps[t], source, s, changes);
  return html(
    "section",
    { class: "stage", "aria-label": "what this step computes" },
    head(display, cell),
    translation.weights
      ? attentionChoices(display, cell)
      : html("p", {}, "This model has no attention: at every step it sees the same summary of the sentence."),
    candidates(display, t),
    html(
      "ol",
      { class: "stages" },
      stages.map((stage) => html("li", {}, described(stage))),
    ),
  );
}

/**
 * @param {TranslationDisplay} display
 * @param {Cell} cell
 */
function head({ run, translation, state, id, change }, [t, s]) {
  const title = [
    state.beside === null ? "" : `${run.name}: `,
    `Step ${t + 1}: “${cutShort(translation.rows[t])}”`,
    translation.weights ? ` looks at “${cutShort(translation.columns[s])}”` : "",
  ];
  const close = toggle(`${id}-close`, false, () => change({ cell: null }), "close");
  return html("div", { class: "head" }, html("h3", {}, title), close);
}

/**
 * Draws the choices of this step's weights.
 *
 * @param {TranslationDisplay} display
 * @param {Cell} cell
 */
function attentionChoices({ translation, state, id, change }, [t, s]) {
  const { [t]: _, ...others } = state.rows;
  const choice = (/** @type {string} */ label, /** @type {Row | undefined} */ row) => {
    const choose = () => change({ rows: row === undefined ? others : { ...others, [t]: row } });
    return toggle(`${id}-row-${row}`, translation.applied.rows[t] === row, choose, label);
  };
  return html(
    "div",
    { class: "choices" },
    html("span", {}, "Weights of this step:"),
    choice("as computed", undefined),
    choice("equal on all", "flat"),
    choice(`all on “${cutShort(translation.tokens[s])}”`, s),
  );
}

/**
 * Draws the likeliest next words, each a button that takes it.
 *
 * @param {TranslationDisplay} display
 * @param {number} t the target position.
 */
function candidates({ run, translation, state, id, change }, t) {
  const { token, logProbabilities } = translation.steps[t];
  const hasBeams = translation.beamSize > 1;
  // With beams, the words before this one are held, for another hypothesis may be better with the new word.
  const before = Object.entries(hasBeams ? translation.words : state.words);
  const held = Object.fromEntries(before.filter(([position]) => Number(position) < t));
  const buttons = largest(logProbabilities, CANDIDATES).map((candidate) => {
    const word = wordOf(run.target, candidate);
    const take = () => change({ words: { ...held, [t]: word }, hypothesis: 0 });
    const probability = html("span", { class: "number" }, share(Math.exp(logProbabilities[candidate])));
    return toggle(`${id}-word-${word}`, token === candidate, take, `${plain(word)} `, probability);
  });
  const undo = () => change({ words: hasBeams ? {} : held });
  const label = hasBeams ? "undo the chosen words" : "undo this choice";
  return html(
    "div",
    { class: "choices" },
    html("span", {}, "Next word, by ", html("span", { class: "formula" }, "softmax(W read-out)"), "take:"),
    buttons,
    t in translation.applied.words ? toggle(`${id}-word-undo`, false, undo, label) : null,
  );
}

/** @param {Stage} stage */
function described({ title, formula, vector, terms, number }) {
  return [
    html("b", {}, title),
    html("span", { class: "formula" }, formula),
    number === undefined ? null : html("span", { class: "number" }, `= ${signed(number, 4)}`),
    vector ? html("span", { class: "number" }, listed(vector)) : null,
    terms?.length ? termTable(terms) : null,
  ];
}

/** @param {Vector} vector */
function listed(vector) {
  const length = Math.sqrt(dot(vector, vector));
  const first = Array.from(vector.slice(0, NUMBERS), (number) => signed(number)).join("  ");
  const more = vector.length > NUMBERS ? "  …" : "";
  return `[${first}${more}] ${vector.length} numbers, of length ${length.toFixed(2)}`;
}

/** @param {Term[]} terms */
function termTable(terms) {
  const row = (/** @type {"td" | "th"} */ kind, /** @type {(string | number)[]} */ cells) =>
    html(
      "tr",
      {},
      cells.map((cell) => html(kind, {}, String(cell))),
    );
  const table = html(
    "table",
    { class: "terms" },
    html("caption", {}, "the units that weigh most in it, for or against"),
    row("th", ["unit", "query", "key", "factor", "adds"]),
    terms.map(({ unit, query, key, factor, term }) =>
      row("td", [unit, signed(query), signed(key), signed(factor, 3), signed(term, 3)]),
    ),
  );
  return html("div", { class: "scrolled" }, table);
}
