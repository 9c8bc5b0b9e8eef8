// What a step computes, in the order of the paper: Bahdanau et al. 2015, A.1.2 and A.2.2. No elements, only values.

import { dot, largest } from "./numbers.mjs";

const KINDS = {
  additive: { query: "W s", key: "U h", score: "e = v · tanh(W s + U h)" },
  dot_product: { query: "W s", key: "U h", score: "e = W s · U h" },
  scaled_dot_product: { query: "W s", key: "U h", score: "e = W s · U h / √width" },
  cosine: { query: "W s", key: "U h", score: "e = scale × cosine of the angle between W s and U h" },
  bilinear: { query: "s", key: "h", score: "e = s · W h" },
};
const SHOWN = 5;

/**
 * Returns the stages of one step and one source word.
 *
 * @param {object} model
 * @param {object} found what `step` of model.mjs has found.
 * @param {object} source what was looked at.
 * @param {number} s the source position.
 * @param {{masked: number[], row: "flat" | number | undefined}} changed what a person has changed of this look.
 * @returns {{title: string, formula: string, vector?: number[], terms?: object[], number?: number}[]}
 */
export function explained(model, found, source, s, changed) {
  const { looks, attention } = model.shape;
  const state =
    looks === "before" ? "the decoder's state before this word" : "the state after the word before";
  const read = looks === "before" ? "the word before and the context" : "the word before";
  const looking =
    attention === "none"
      ? [{ title: "Context", formula: "c, the encoder's summary, at every step", vector: found.context }]
      : [
          { title: "Query", formula: `${KINDS[attention].query}, of s, ${state}`, vector: found.query },
          {
            title: "Key",
            formula: `${KINDS[attention].key}, of h, the source word in its sentence`,
            vector: source.keys[s],
          },
          {
            title: "Score",
            formula: KINDS[attention].score,
            number: found.scores[s],
            terms: termsOf(model, found.query, source.keys[s]),
          },
          { title: "Weight", formula: weightOf(s, changed), number: found.weights[s] },
          { title: "Context", formula: "c = sum of a h of all source words", vector: found.context },
        ];
  const next = { title: "State", formula: `s' = GRU(s, ${read})`, vector: found.state.layers.at(-1) };
  const features = { title: "Read-out", formula: "tanh(W [s'; c; the word before])", vector: found.features };
  return looks === "before" ? [...looking, next, features] : [next, ...looking, features];
}

/** Returns how a weight was made, in words. */
function weightOf(s, { masked, row }) {
  if (row === "flat") return "equal on all that may be looked at: you chose so";
  if (row !== undefined) return "all on one word: you chose so";
  if (masked.includes(s)) return "none, for you hid this word from the looking; the encoder has read it";
  const which = masked.length ? "that are not hidden" : "and the end";
  return `a = exp(e) / sum of exp(e) of all source words ${which}`;
}

/** Returns the units that weigh most in a score, the heaviest first; none where it is no sum over them. */
function termsOf({ shape, arrays }, query, key) {
  if (shape.attention === "bilinear") return [];
  const factors = {
    additive: (i) => arrays["decoder/look_up/score_vector"][i],
    dot_product: () => 1,
    scaled_dot_product: () => 1 / Math.sqrt(query.length),
    cosine: () => arrays["decoder/look_up/scale"][0] / Math.sqrt(dot(query, query) * dot(key, key)),
  };
  const factor = factors[shape.attention];
  const terms = Array.from(query, (number, i) =>
    shape.attention === "additive" ? factor(i) * Math.tanh(number + key[i]) : factor(i) * number * key[i],
  );
  return largest(terms.map(Math.abs), SHOWN).map((unit) => ({
    unit,
    query: query[unit],
    key: key[unit],
    factor: factor(unit),
    term: terms[unit],
  }));
}
