// The formulas of a decoder step in MathML, in the order of Bahdanau et al. 2015, A.1.2 and A.2.2.

import type { Attention, Shape } from "./data";

export type StageName = "Query" | "Key" | "Score" | "Weight" | "Context" | "State" | "Features";

/** A symbol and its meaning. */
type Meaning = [symbol: string, meaning: string];

interface Formula {
  name: StageName;
  formula: string;
  symbols: Meaning[]; // the symbols that appear for the first time
}

const sub = (symbol: string, index: string) => `<msub><mi>${symbol}</mi><mrow>${index}</mrow></msub>`;
const call = (name: string, argument: string) => `<mi>${name}</mi><mo>(</mo>${argument}<mo>)</mo>`;
const list = (items: string[]) => `<mo>[</mo>${items.join("<mo>;</mo>")}<mo>]</mo>`;
const affine = (index: string, input: string) => `${sub("W", index)}${input}<mo>+</mo>${sub("b", index)}`;

const [c, d, f, g, p, s, U, v, W, y] = [..."cdfgpsUvWy"].map((name) => `<mi>${name}</mi>`);
const [a, e, h] = [..."aeh"].map((name) => sub(name, "<mi>j</mi>"));
const [lastFeatures, lastState] = [..."fs"].map((name) => sub(name, "<mi>t</mi><mo>−</mo><mn>1</mn>"));
const nextState = "<msup><mi>s</mi><mo>′</mo></msup>";
const [query, key] = [W + s, U + h];
const product = `${query}<mo>·</mo>${key}`;

const SCORES: Record<Attention, { score: string; symbols: Meaning[] }> = {
  additive: {
    score: `${v}<mo>·</mo>${call("tanh", `${query}<mo>+</mo>${key}`)}`,
    symbols: [[v, "score vector"]],
  },
  dot_product: { score: product, symbols: [] },
  scaled_dot_product: {
    score: `${product}<mo>/</mo><msqrt>${d}</msqrt>`,
    symbols: [[d, "width of the query"]],
  },
  cosine: { score: g + call("cos", `${query}<mo>,</mo>${key}`), symbols: [[g, "learned scale"]] },
  bilinear: { score: `${s}<mo>·</mo>${W}${h}`, symbols: [[W, "learned matrix"]] },
};

/** The probabilities of the next token. */
export const NEXT_TOKEN = `${p}<mo>=</mo>${call("softmax", affine(p, f))}`;

/** Returns the formulas of a decoder step. */
export function formulasOf(shape: Shape): Formula[] {
  const isAttentionFirst = shape.attend_order === "before";
  const [next, last] = isAttentionFirst ? [nextState, s] : [s, lastState];
  const attention = attentionFormulas(shape.attention, isAttentionFirst ? [[s, "decoder state"]] : []);
  const inputs = [y, ...(isAttentionFirst ? [c] : []), ...(shape.input_feeding ? [lastFeatures] : [])];
  const numLayers = shape.num_decoder_layers;
  const layers = numLayers > 1 ? ` of ${numLayers} layers, the last one is shown` : "";
  const stateSymbols: Meaning[] = [
    [next, `${isAttentionFirst ? "next decoder state" : "decoder state"}${layers}`],
    [y, "embedding of the previous token"],
  ];
  if (!isAttentionFirst) stateSymbols.push([last, "previous decoder state"]);
  if (shape.input_feeding) stateSymbols.push([lastFeatures, "previous output features"]);
  const state: Formula = {
    name: "State",
    formula: `${next}<mo>=</mo>${call("GRU", `${last}<mo>,</mo>${inputs.length > 1 ? list(inputs) : y}`)}`,
    symbols: stateSymbols,
  };
  const parameters: Meaning = [`${sub("W", f)}<mo>,</mo>${sub("b", f)}`, "weights and bias"];
  const features: Formula = {
    name: "Features",
    formula: `${f}<mo>=</mo>${call("tanh", affine(f, list([next, c, y])))}`,
    symbols: [[f, "output features"], parameters],
  };
  return isAttentionFirst ? [...attention, state, features] : [state, ...attention, features];
}

function attentionFormulas(attention: Attention | "none", state: Meaning[]): Formula[] {
  if (attention === "none") {
    return [{ name: "Context", formula: c, symbols: [[c, "final encoder state, the same at each step"]] }];
  }
  const { score, symbols } = SCORES[attention];
  const encoderState: Meaning = [h, "encoder state of token j"];
  const sum = `<mrow><mo>∑</mo>${call("exp", "<mi>e</mi>")}</mrow>`;
  const softmax = `<mfrac><mrow>${call("exp", e)}</mrow>${sum}</mfrac>`;
  const context = `${c}<mo>=</mo><munder><mo>∑</mo><mi>j</mi></munder>${a}${h}`;
  const isProjected = attention !== "bilinear";
  const [queryMatrix, keyMatrix]: Meaning[][] = isProjected
    ? [[[W, "query matrix"]], [[U, "key matrix"]]]
    : [[], []];
  return [
    { name: "Query", formula: isProjected ? query : s, symbols: [...state, ...queryMatrix] },
    { name: "Key", formula: isProjected ? key : h, symbols: [encoderState, ...keyMatrix] },
    { name: "Score", formula: `${e}<mo>=</mo>${score}`, symbols: [[e, "score"], ...symbols] },
    { name: "Weight", formula: `${a}<mo>=</mo>${softmax}`, symbols: [[a, "weight"]] },
    { name: "Context", formula: context, symbols: [[c, "context"]] },
  ];
}
