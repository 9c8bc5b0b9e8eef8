// What the page shows, as the part of its address after "#", so that a link shows the same.

/**
 * @import { Cell, Side } from "./data"
 *
 * @typedef {object} State
 * @property {string | null} text the source; null for the page's first example.
 * @property {number} run which of the page's runs.
 * @property {number | null} beside another run, on the same text.
 * @property {number | null} step of the checkpoint; null for the one that the run translates with.
 * @property {number | null} beam the beam size; 1 for greedy search or sampling; null for the run's own.
 * @property {number} temperature of sampling; 0 for greedy search.
 * @property {number} seed of sampling.
 * @property {number[]} masked source positions that may not be attended to.
 * @property {Record<number, string>} words that the user has chosen, by target position.
 * @property {Record<number, Row>} rows of weights that the user has changed, by target position.
 * @property {"map" | "arcs"} view
 * @property {number | null} shown how many words of the translation are shown; null for all.
 * @property {Cell | null} cell whose numbers are shown.
 * @property {number} hypothesis which one of the beam search.
 * @property {Side} side of a run whose attention was recorded.
 * @property {number | null} layer of such a run; null for the mean.
 * @property {number | null} head of such a run; null for the mean.
 *
 * @typedef {"flat" | number} Row of weights: equal, or all on one source position.
 */

/** @type {Readonly<State>} */
export const DEFAULTS = Object.freeze({
  text: null,
  run: 0,
  beside: null,
  step: null,
  beam: null,
  temperature: 0,
  seed: 0,
  masked: [],
  words: {},
  rows: {},
  view: "map",
  shown: null,
  cell: null,
  hypothesis: 0,
  side: "decoder",
  layer: null,
  head: null,
});

/**
 * Returns a state with another text, and without the user's changes of the previous one.
 *
 * @template {string | null} Text
 * @param {Readonly<State>} state
 * @param {Text} text
 */
export function withText(state, text) {
  const { masked, words, rows, shown, cell, hypothesis } = DEFAULTS;
  return { ...state, masked, words, rows, shown, cell, hypothesis, text };
}

/**
 * Returns a state as text for the address: only what differs from the defaults.
 *
 * @param {Readonly<State>} state
 */
export function toAddress(state) {
  const params = new URLSearchParams();
  for (const name of Object.keys(DEFAULTS).filter(isName)) {
    const [value, usual] = [state[name], DEFAULTS[name]];
    const isUsual = written(value) === written(usual) && (value === null) === (usual === null);
    if (!isUsual) params.set(name, written(value));
  }
  return params.toString();
}

/**
 * Returns the state of an address. What it lacks, or what is invalid in it, has its default.
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
function written(value) {
  if (Array.isArray(value)) return value.join(",");
  if (value === null) return "";
  if (typeof value !== "object") return String(value);
  return Object.entries(value)
    .map(([t, each]) => `${t}:${encodeURIComponent(each)}`)
    .join(",");
}

/**
 * @template T
 * @typedef {(text: string) => T | undefined} Reader returns the value of a text, undefined if it is invalid.
 */

/**
 * @param {number} least
 * @returns {Reader<number>}
 */
function number(least, most = 1e9) {
  return (text) => {
    const value = Number(text);
    return text !== "" && value >= least && value <= most ? value : undefined;
  };
}

/**
 * @param {number} least
 * @param {number} [most]
 * @returns {Reader<number>}
 */
function whole(least, most) {
  const read = number(least, most);
  return (text) => {
    const value = read(text);
    return Number.isInteger(value) ? value : undefined;
  };
}

/**
 * @template {string} Value
 * @param {...Value} values
 * @returns {Reader<Value>}
 */
function oneOf(...values) {
  return (text) => values.find((value) => value === text);
}

/** @type {Reader<number[]>} */
function list(text) {
  const values = text.split(",").map(whole(0));
  return values.every((value) => value !== undefined) ? values : undefined;
}

/** @type {Reader<Cell>} */
function cell(text) {
  const places = list(text);
  return places?.length === 2 ? [places[0], places[1]] : undefined;
}

/**
 * Returns a reader of values at target positions: "3:gatto,5:nero".
 *
 * @template Value
 * @param {Reader<Value>} read
 * @returns {Reader<Record<number, Value>>}
 */
function byPosition(read) {
  return (text) => {
    /** @type {Record<number, Value>} */
    const values = {};
    for (const part of text.split(",")) {
      const [position, encoded] = part.split(":");
      const t = whole(0)(position);
      const value = encoded === undefined ? undefined : read(safelyDecoded(encoded));
      if (t === undefined || value === undefined) return undefined;
      values[t] = value;
    }
    return values;
  };
}

/** @param {string} text */
function safelyDecoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** @type {{[Name in keyof State]: Reader<State[Name]>}} */
const READERS = {
  text: (text) => text,
  run: whole(0),
  beside: whole(0),
  step: whole(0),
  beam: whole(1, 10),
  temperature: number(0, 2),
  seed: whole(0),
  masked: list,
  words: byPosition((text) => text || undefined),
  rows: byPosition((text) => (text === "flat" ? text : whole(0)(text))),
  view: oneOf("map", "arcs"),
  shown: whole(0),
  cell,
  hypothesis: whole(0),
  side: oneOf("decoder", "encoder"),
  layer: whole(0),
  head: whole(0),
};
