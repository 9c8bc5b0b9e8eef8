// The state of the page, and the part of the address after "#" that holds it.

import { readCell, readIndex, readIndices, readNumber, readOneOf, readRecord } from "./url_values.mjs";

/**
 * @import { Cell, Side } from "./data"
 * @import { Reader } from "./url_values.mjs"
 *
 * @typedef {object} State
 * @property {string | null} text the source; null for the first example.
 * @property {number} run index of the run.
 * @property {number | null} compare index of a second run on the same text.
 * @property {number | null} checkpoint training step; null for the checkpoint that the run translates with.
 * @property {number | null} beamSize 1 for greedy decoding or sampling; null for the beam size of the run.
 * @property {number} temperature of sampling; 0 for greedy decoding.
 * @property {number} seed of sampling.
 * @property {number[]} masked source positions that cannot be attended to.
 * @property {Record<number, string>} forcedWords by target position.
 * @property {Record<number, WeightOverride>} weightOverrides by target position.
 * @property {"heatmap" | "arcs"} view
 * @property {number | null} numShown the number of words of the translation that are shown; null for all.
 * @property {Cell | null} cell the selected target and source position.
 * @property {number} hypothesis index of a hypothesis of beam search.
 * @property {Side} side of a recorded run.
 * @property {number | null} layer of a recorded run; null for the mean.
 * @property {number | null} head of a recorded run; null for the mean.
 * @property {string} find a text; words of a recorded run that contain it are marked.
 *
 * @typedef {"uniform" | number} WeightOverride uniform weights, or weight 1 on one source position.
 */

/** @type {Readonly<State>} */
export const DEFAULTS = Object.freeze({
  text: null,
  run: 0,
  compare: null,
  checkpoint: null,
  beamSize: null,
  temperature: 0,
  seed: 0,
  masked: [],
  forcedWords: {},
  weightOverrides: {},
  view: "heatmap",
  numShown: null,
  cell: null,
  hypothesis: 0,
  side: "decoder",
  layer: null,
  head: null,
  find: "",
});

/** @type {{[Name in keyof State]: Reader<State[Name]>}} */
const READERS = {
  text: (text) => text,
  run: readIndex(),
  compare: readIndex(),
  checkpoint: readIndex(),
  beamSize: readIndex(1, 10),
  temperature: readNumber(0, 2),
  seed: readIndex(),
  masked: readIndices,
  forcedWords: readRecord((text) => text || undefined),
  weightOverrides: readRecord((text) => (text === "uniform" ? text : readIndex()(text))),
  view: readOneOf("heatmap", "arcs"),
  numShown: readIndex(),
  cell: readCell,
  hypothesis: readIndex(),
  side: readOneOf("decoder", "encoder"),
  layer: readIndex(),
  head: readIndex(),
  find: (text) => text,
};

/**
 * Returns a state with another text, without the changes that refer to the previous text.
 *
 * @template {string | null} Text
 * @param {Readonly<State>} state
 * @param {Text} text
 */
export function withText(state, text) {
  const { masked, forcedWords, weightOverrides, numShown, cell, hypothesis } = DEFAULTS;
  return { ...state, masked, forcedWords, weightOverrides, numShown, cell, hypothesis, text };
}

/**
 * Returns a state whose translation is that of the run, without the user's changes.
 *
 * @template {Readonly<State>} Kind
 * @param {Kind} state
 */
export function withReset(state) {
  const { beamSize, temperature, seed, checkpoint } = DEFAULTS;
  return { ...withText(state, state.text), beamSize, temperature, seed, checkpoint };
}

/**
 * Returns the values of a state that differ from the defaults, as URL parameters.
 *
 * @param {Readonly<State>} state
 */
export function toAddress(state) {
  const params = new URLSearchParams();
  for (const name of Object.keys(DEFAULTS).filter(isName)) {
    const [value, initial] = [state[name], DEFAULTS[name]];
    const isDefault = format(value) === format(initial) && (value === null) === (initial === null);
    if (!isDefault) params.set(name, format(value));
  }
  return params.toString();
}

/**
 * Returns the state of an address. Missing and invalid values are replaced by their defaults.
 *
 * @param {string} address
 */
export function fromAddress(address) {
  const state = { ...DEFAULTS };
  for (const [name, text] of new URLSearchParams(address.replace(/^#/, ""))) {
    const value = isName(name) ? READERS[name](text) : undefined;
    if (value !== undefined) Object.assign(state, { [name]: value });
  }
  return state;
}

/**
 * @param {string} name
 * @returns {name is keyof State}
 */
function isName(name) {
  return Object.hasOwn(DEFAULTS, name);
}

/** @param {State[keyof State]} value */
function format(value) {
  if (Array.isArray(value)) return value.join(",");
  if (value === null) return "";
  if (typeof value !== "object") return String(value);
  return Object.entries(value)
    .map(([t, item]) => `${t}:${encodeURIComponent(item)}`)
    .join(",");
}
