// The formulas of a decoder step in MathML, in the order of Bahdanau et al. 2015, A.1.2 and A.2.2.

import type { Attention, Shape } from "./data";

export type StageName = "Query" | "Key" | "Score" | "Weight" | "Context" | "State" | "Features";

export interface Formula {
  name: StageName;
  formula: string;
  /** The symbols that appear for the first time, with their meanings. */
  symbols: [string, string][];
}

const sub = (symbol: string, index: string) => `<msub><mi>${symbol}</mi><mrow>${index}</mrow></msub>`;
const call = (name: string, argument: string) => `<mi>${name}</mi><mo>(</mo>${argument}<mo>)</mo>`;
const list = (items: string[]) => `<mo>[</mo>${items.join("<mo>;</mo>")}<mo>]</mo>`;
const affine = (name: string, input: string) =>
  `${sub("W", `<mi>${name}</mi>`)}${input}<mo>+</mo>${sub("b", `<mi>${name}</mi>`)}`;

const [c, d, f, g, p, s, U, v, W, y] = [..."cdfgpsUvWy"].map((name) => `<mi>${name}</mi>`);
const [a, e, h] = [..."aeh"].map((name) => sub(name, "<mi>j</mi>"));
const [lastFeatures, lastState] = [..."fs"].map((name) => sub(name, "<mi>t</mi><mo>−</mo><mn>1</mn>"));
const nextState = "<msup><mi>s</mi><mo>′</mo></msup>";
const [query, key] = [W + s, U + h];

const SCORES: Record<Attention, { score: string; symbols: Formula["symbols"] }> = {
  additive: {
    score: `${v}<mo>·</mo>${call("tanh", `${query}<mo>+</mo>${key}`)}`,
    symbols: [[v, "score vector"]],
  },
  dot_product: { score: `${query}<mo>·</mo>${key}`, symbols: [] },
  scaled_dot_product: {
    score: `${query}<mo>·</mo>${key}<mo>/</mo><msqrt>${d}</msqrt>`,
    symbols: [[d, "width of the query"]],
  },
  cosine: { score: g + call("cos", `${query}<mo>,</mo>${key}`), symbols: [[g, "learned scale"]] },
  bilinear: { score: `${s}<mo>·</mo>${W}${h}`, symbols: [[W, "learned matrix"]] },
};

/** The probabilities of the next token. */
export const NEXT_TOKEN = `${p}<mo>=</mo>${call("softmax", affine("p", f))}`;

/** Returns the formulas of a decoder step. */
export function formulasOf(shape: Shape): Formula[] {
  const attention = shape.attention === "none" ? [FIXED_CONTEXT] : attentionFormulas(shape, shape.attention);
  const [state, features] = [stateFormula(shape), featuresFormula(shape)];
  return shape.attend_order === "before" ? [...attention, state, features] : [state, ...attention, features];
}

const FIXED_CONTEXT: Formula = {
  name: "Context",
  formula: c,
  symbols: [[c, "final encoder state, the same at each step"]],
};

function attentionFormulas(shape: Shape, attention: Attention): Formula[] {
  const isProjected = attention !== "bilinear";
  const { score, symbols } = SCORES[attention];
  const state: Formula["symbols"] = shape.attend_order === "before" ? [[s, "decoder state"]] : [];
  const weight = `<mfrac><mrow>${call("exp", e)}</mrow><mrow><mo>∑</mo>${call("exp", "<mi>e</mi>")}</mrow></mfrac>`;
  return [
    {
      name: "Query",
      formula: isProjected ? query : s,
      symbols: isProjected ? [...state, [W, "query matrix"]] : state,
    },
    {
      name: "Key",
      formula: isProjected ? key : h,
      symbols: isProjected
        ? [
            [h, "encoder state of token j"],
            [U, "key matrix"],
          ]
        : [[h, "encoder state of token j"]],
    },
    { name: "Score", formula: `${e}<mo>=</mo>${score}`, symbols: [[e, "score"], ...symbols] },
    { name: "Weight", formula: `${a}<mo>=</mo>${weight}`, symbols: [[a, "weight"]] },
    {
      name: "Context",
      formula: `${c}<mo>=</mo><munder><mo>∑</mo><mi>j</mi></munder>${a}${h}`,
      symbols: [[c, "context"]],
    },
  ];
}

function stateFormula({ attend_order, input_feeding, num_decoder_layers }: Shape): Formula {
  const isAttentionFirst = attend_order === "before";
  const [next, last] = isAttentionFirst ? [nextState, s] : [s, lastState];
  const inputs = [y, ...(isAttentionFirst ? [c] : []), ...(input_feeding ? [lastFeatures] : [])];
  const layers = num_decoder_layers > 1 ? ` of ${num_decoder_layers} layers, the last one is shown` : "";
  const symbols: Formula["symbols"] = [
    [next, `${isAttentionFirst ? "next decoder state" : "decoder state"}${layers}`],
    [y, "embedding of the previous token"],
  ];
  if (!isAttentionFirst) symbols.push([last, "previous decoder state"]);
  if (input_feeding) symbols.push([lastFeatures, "previous output features"]);
  return {
    name: "State",
    formula: `${next}<mo>=</mo>${call("GRU", `${last}<mo>,</mo>${inputs.length > 1 ? list(inputs) : y}`)}`,
    symbols,
  };
}

function featuresFormula(shape: Shape): Formula {
  const inputs = list([shape.attend_order === "before" ? nextState : s, c, y]);
  const parameters = `${sub("W", f)}<mo>,</mo>${sub("b", f)}`;
  return {
    name: "Features",
    formula: `${f}<mo>=</mo>${call("tanh", affine("f", inputs))}`,
    symbols: [
      [f, "output features"],
      [parameters, "weights and bias"],
    ],
  };
}
