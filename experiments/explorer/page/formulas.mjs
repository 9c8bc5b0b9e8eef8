// The formulas of a decoder step, in the order of Bahdanau et al. 2015, A.1.2 and A.2.2.

import { mathml } from "./dom.mjs";

/**
 * @import { Attention, Shape } from "./data"
 *
 * @typedef {"Query" | "Key" | "Score" | "Weight" | "Context" | "State" | "Features"} StageName
 *
 * @typedef {object} Formula
 * @property {StageName} name
 * @property {Element} formula in MathML.
 * @property {[Element, string][]} symbols those that appear for the first time, with their meanings.
 */

const symbol = (/** @type {string} */ name) => mathml("mi", name);
const operator = (/** @type {string} */ name) => mathml("mo", name);
const row = (/** @type {(Element | string)[]} */ ...items) =>
  mathml(
    "mrow",
    items.map((item) => (typeof item === "string" ? operator(item) : item)),
  );
const subscript = (/** @type {Element} */ base, /** @type {Element} */ index) => mathml("msub", base, index);
const math = (/** @type {(Element | string)[]} */ ...items) => mathml("math", row(...items));
const call = (/** @type {string} */ name, /** @type {(Element | string)[]} */ ...args) =>
  row(symbol(name), "(", ...args, ")");

const j = () => symbol("j");
const h = () => subscript(symbol("h"), j());
const e = () => subscript(symbol("e"), j());
const a = () => subscript(symbol("a"), j());
const projectedQuery = () => row(symbol("W"), symbol("s"));
const projectedKey = () => row(symbol("U"), h());
const previous = (/** @type {string} */ name) =>
  subscript(symbol(name), row(symbol("t"), "−", mathml("mn", "1")));
const nextState = () => mathml("msup", symbol("s"), operator("′"));
const weightsOf = (/** @type {string} */ name) => subscript(symbol("W"), symbol(name));
const biasOf = (/** @type {string} */ name) => subscript(symbol("b"), symbol(name));

/** @type {Record<Attention, () => {score: Element, symbols: [Element, string][]}>} */
const SCORES = {
  additive: () => ({
    score: row(symbol("v"), "·", call("tanh", projectedQuery(), "+", projectedKey())),
    symbols: [[symbol("v"), "score vector"]],
  }),
  dot_product: () => ({ score: row(projectedQuery(), "·", projectedKey()), symbols: [] }),
  scaled_dot_product: () => ({
    score: row(projectedQuery(), "·", projectedKey(), "/", mathml("msqrt", symbol("d"))),
    symbols: [[symbol("d"), "width of the query"]],
  }),
  cosine: () => ({
    score: row(symbol("g"), call("cos", projectedQuery(), ",", projectedKey())),
    symbols: [[symbol("g"), "learned scale"]],
  }),
  bilinear: () => ({
    score: row(symbol("s"), "·", symbol("W"), h()),
    symbols: [[symbol("W"), "learned matrix"]],
  }),
};

/**
 * Returns the formulas of a decoder step.
 *
 * @param {Shape} shape
 * @returns {Formula[]}
 */
export function formulasOf(shape) {
  const isAttentionFirst = shape.attend_order === "before";
  const attention =
    shape.attention === "none" ? [contextWithoutAttention()] : attentionFormulas(shape, shape.attention);
  const [state, features] = [
    stateFormula(shape),
    featuresFormula(isAttentionFirst ? nextState() : symbol("s")),
  ];
  return isAttentionFirst ? [...attention, state, features] : [state, ...attention, features];
}

/**
 * Returns the formula of the probabilities of the next word.
 *
 * @returns {Element}
 */
export function nextWordFormula() {
  return math(symbol("p"), "=", call("softmax", weightsOf("p"), symbol("f"), "+", biasOf("p")));
}

/** @returns {Formula} */
function contextWithoutAttention() {
  return {
    name: "Context",
    formula: math(symbol("c")),
    symbols: [[symbol("c"), "final encoder state, the same at each step"]],
  };
}

/**
 * @param {Shape} shape
 * @param {Attention} attention
 * @returns {Formula[]}
 */
function attentionFormulas(shape, attention) {
  const isProjected = attention !== "bilinear";
  const { score, symbols } = SCORES[attention]();
  /** @type {[Element, string][]} */
  const stateSymbol = shape.attend_order === "before" ? [[symbol("s"), "decoder state"]] : [];
  return [
    {
      name: "Query",
      formula: math(isProjected ? projectedQuery() : symbol("s")),
      symbols: [...stateSymbol, ...(isProjected ? [described(symbol("W"), "query matrix")] : [])],
    },
    {
      name: "Key",
      formula: math(isProjected ? projectedKey() : h()),
      symbols: [
        described(h(), "encoder state of word j"),
        ...(isProjected ? [described(symbol("U"), "key matrix")] : []),
      ],
    },
    { name: "Score", formula: math(e(), "=", score), symbols: [[e(), "score"], ...symbols] },
    {
      name: "Weight",
      formula: math(a(), "=", mathml("mfrac", call("exp", e()), row("∑", call("exp", symbol("e"))))),
      symbols: [[a(), "weight"]],
    },
    {
      name: "Context",
      formula: math(symbol("c"), "=", mathml("munder", operator("∑"), j()), a(), h()),
      symbols: [[symbol("c"), "context"]],
    },
  ];
}

/**
 * Returns a symbol with its meaning.
 *
 * @param {Element} element
 * @param {string} meaning
 * @returns {[Element, string]}
 */
function described(element, meaning) {
  return [element, meaning];
}

/**
 * @param {Shape} shape
 * @returns {Formula}
 */
function stateFormula(shape) {
  const isAttentionFirst = shape.attend_order === "before";
  const next = () => (isAttentionFirst ? nextState() : symbol("s"));
  const last = () => (isAttentionFirst ? symbol("s") : previous("s"));
  const inputs = [
    symbol("y"),
    ...(isAttentionFirst ? [symbol("c")] : []),
    ...(shape.input_feeding ? [previous("f")] : []),
  ];
  const separated = inputs.flatMap((input, i) => (i ? [";", input] : [input]));
  const numLayers = shape.num_decoder_layers;
  const layers = numLayers > 1 ? ` of ${numLayers} layers, the last one is shown` : "";
  const input = inputs.length > 1 ? ["[", ...separated, "]"] : separated;
  return {
    name: "State",
    formula: math(next(), "=", call("GRU", last(), ",", ...input)),
    symbols: [
      described(next(), `${isAttentionFirst ? "next decoder state" : "decoder state"}${layers}`),
      ...(isAttentionFirst ? [] : [described(last(), "previous decoder state")]),
      described(symbol("y"), "embedding of the previous word"),
      ...(shape.input_feeding ? [described(previous("f"), "previous output features")] : []),
    ],
  };
}

/**
 * @param {Element} state
 * @returns {Formula}
 */
function featuresFormula(state) {
  const inputs = row("[", state, ";", symbol("c"), ";", symbol("y"), "]");
  return {
    name: "Features",
    formula: math(symbol("f"), "=", call("tanh", weightsOf("f"), inputs, "+", biasOf("f"))),
    symbols: [
      [symbol("f"), "output features"],
      [row(weightsOf("f"), ",", biasOf("f")), "weights and bias"],
    ],
  };
}
