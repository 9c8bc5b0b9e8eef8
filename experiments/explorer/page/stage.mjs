// What one look of the decoder computes, in numbers, and what a person may change of it.

import { cutShort, html, share, signed, toggle } from "./dom.mjs";
import { explained } from "./explained.mjs";
import { largest } from "./numbers.mjs";
import { plain, wordOf } from "./words.mjs";

const NUMBERS = 6;
const CANDIDATES = 6;

/**
 * Returns the panel of a cell.
 *
 * @param {object} run of the page's data.
 * @param {object} found by `translated`.
 * @param {object} state whose cell is shown.
 * @param {string} place of the run on the page, in keys.
 * @param {(changed: object) => void} change called with what a person changes of the state.
 */
export function stage(run, found, state, place, change) {
  const [t, s] = state.cell;
  const step = found.steps[t];
  const changed = { masked: found.applied.masked, row: found.applied.rows[t] };
  const stages = explained(found.model, step, found.source, s, changed);
  return html(
    "section",
    { class: "stage", "aria-label": "what this step computes" },
    html(
      "div",
      { class: "head" },
      html(
        "h3",
        {},
        state.beside === null ? "" : `${run.name}: `,
        `Step ${t + 1}: “${cutShort(found.rows[t])}”`,
        step.weights ? ` looks at “${cutShort(found.columns[s])}”` : "",
      ),
      toggle(`${place}-close`, false, () => change({ cell: null }), "close"),
    ),
    step.weights
      ? looking(found, state, place, change)
      : html("p", {}, "This model has no attention: at every step it sees the same summary of the sentence."),
    candidates(run, found, state, place, change),
    html(
      "ol",
      { class: "stages" },
      stages.map((each) => html("li", {}, shown(each))),
    ),
  );
}

/** Returns the choices of this step's weights, and of whether the source word may be looked at. */
function looking(found, state, place, change) {
  const [t, s] = state.cell;
  const row = found.applied.rows[t];
  const withRow = (value) => () => {
    const rows = { ...state.rows, [t]: value };
    if (value === undefined) delete rows[t];
    change({ rows });
  };
  const choice = (label, value) => toggle(`${place}-row-${value}`, row === value, withRow(value), label);
  return html(
    "div",
    { class: "choices" },
    html("span", {}, "Weights of this step:"),
    choice("as computed", undefined),
    choice("equal on all", "flat"),
    choice(`all on “${cutShort(found.tokens[s])}”`, s),
  );
}

/** Returns the likeliest next words, each a button that takes it. */
function candidates(run, found, state, place, change) {
  const [t] = state.cell;
  const step = found.steps[t];
  // Of beams, what stands before is held, for another hypothesis may be better with the word.
  const before = found.beamSize > 1 ? found.words.slice(0, t).entries() : Object.entries(state.words);
  const held = Object.fromEntries([...before].filter(([place]) => Number(place) < t));
  const buttons = largest(step.logProbabilities, CANDIDATES).map((id) => {
    const word = wordOf(run.target, id);
    const take = () => change({ words: { ...held, [t]: word }, hypothesis: 0 });
    const probability = html("span", { class: "number" }, share(Math.exp(step.logProbabilities[id])));
    return toggle(`${place}-word-${word}`, step.token === id, take, `${plain(word)} `, probability);
  });
  const undo = () => change({ words: found.beamSize > 1 ? {} : held });
  return html(
    "div",
    { class: "choices" },
    html("span", {}, "Next word, by ", html("span", { class: "formula" }, "softmax(W read-out)"), "take:"),
    buttons,
    t in found.applied.words
      ? toggle(
          `${place}-word-undo`,
          false,
          undo,
          found.beamSize > 1 ? "undo the chosen words" : "undo this choice",
        )
      : null,
  );
}

function shown({ title, formula, vector, terms, number }) {
  return [
    html("b", {}, title),
    html("span", { class: "formula" }, formula),
    number === undefined ? null : html("span", { class: "number" }, `= ${signed(number, 4)}`),
    vector ? html("span", { class: "number" }, listed(vector)) : null,
    terms?.length ? termTable(terms) : null,
  ];
}

function listed(vector) {
  const length = Math.sqrt(Array.from(vector).reduce((sum, each) => sum + each * each, 0));
  const first = Array.from(vector.slice(0, NUMBERS), (each) => signed(each)).join("  ");
  const more = vector.length > NUMBERS ? "  …" : "";
  return `[${first}${more}] ${vector.length} numbers, of length ${length.toFixed(2)}`;
}

function termTable(terms) {
  const row = (kind, cells) =>
    html(
      "tr",
      {},
      cells.map((each) => html(kind, {}, String(each))),
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
