// What the page shows, as the part of its address after "#", so that a link shows the same.

/**
 * @typedef {object} State
 * @property {string | null} text the source; null for the page's first example.
 * @property {number} run which of the page's runs.
 * @property {number | null} beside another run, on the same text.
 * @property {number | null} step of the checkpoint; null for the one that the run translates with.
 * @property {number | null} beam how many beams; 1 for one word at a time; null for the run's own.
 * @property {number} temperature 0 for the likeliest words.
 * @property {number} seed of what is drawn.
 * @property {number[]} masked source positions that may not be looked at.
 * @property {Object<number, string>} words which a person has chosen, by their place in the translation.
 * @property {Object<number, "flat" | number>} rows of weights that a person has changed, by their place.
 * @property {"map" | "arcs"} view
 * @property {number | null} shown how many words of the translation are shown; null for all.
 * @property {[number, number] | null} cell whose numbers are shown: places in the translation and the source.
 * @property {number} hypothesis which one of the beams'.
 * @property {"decoder" | "encoder"} side of a run whose attention was recorded.
 * @property {number | null} layer of such a run; null for the mean.
 * @property {number | null} head likewise.
 */

/** @type {State} */
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

// What belongs to one sentence, and is left with it.
const OF_A_SENTENCE = ["masked", "words", "rows", "shown", "cell", "hypothesis"];

/** Returns a state with another text, and nothing of what a person changed in the one before. */
export function withText(state, text) {
  const kept = Object.fromEntries(OF_A_SENTENCE.map((name) => [name, DEFAULTS[name]]));
  return { ...state, ...kept, text };
}

/** Returns a state as text for the address: only what is not as usual. */
export function toAddress(state) {
  const params = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const [value, text] = [state[name], written(state[name])];
    if (text !== written(usual) || (value === null) !== (usual === null)) params.set(name, text);
  }
  return params.toString();
}

/** Returns the state of an address; what it says nothing of, or nonsense, is as usual. */
export function fromAddress(text) {
  const params = new URLSearchParams(text.replace(/^#/, ""));
  const state = { ...DEFAULTS };
  for (const [name, value] of params) {
    const read = Object.hasOwn(READERS, name) ? READERS[name](value) : undefined;
    if (read !== undefined) state[name] = read;
  }
  return state;
}

function written(value) {
  if (Array.isArray(value)) return value.join(",");
  if (value === null) return "";
  if (typeof value !== "object") return String(value);
  return Object.entries(value)
    .map(([t, each]) => `${t}:${encodeURIComponent(each)}`)
    .join(",");
}

const number =
  (least, most = 1e9) =>
  (text) => {
    const value = Number(text);
    return text !== "" && value >= least && value <= most ? value : undefined;
  };
const whole = (least, most) => (text) => {
  const value = number(least, most)(text);
  return Number.isInteger(value) ? value : undefined;
};
const oneOf =
  (...values) =>
  (text) =>
    values.includes(text) ? text : undefined;

function list(text) {
  const values = text.split(",").map(whole(0));
  return values.includes(undefined) ? undefined : values;
}

/** Returns a reader of what stands at some places: "3:gatto,5:nero". */
function byPlace(read) {
  return (text) => {
    const found = {};
    for (const part of text.split(",")) {
      const [place, each] = part.split(":");
      const [t, value] = [whole(0)(place), each === undefined ? undefined : read(safelyDecoded(each))];
      if (t === undefined || value === undefined) return undefined;
      found[t] = value;
    }
    return found;
  };
}

function safelyDecoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const READERS = {
  text: (text) => text,
  run: whole(0),
  beside: whole(0),
  step: whole(0),
  beam: whole(1, 10),
  temperature: number(0, 2),
  seed: whole(0),
  masked: list,
  words: byPlace((text) => text || undefined),
  rows: byPlace((text) => (text === "flat" ? text : whole(0)(text))),
  view: oneOf("map", "arcs"),
  shown: whole(0),
  cell: (text) => (list(text)?.length === 2 ? list(text) : undefined),
  hypothesis: whole(0),
  side: oneOf("decoder", "encoder"),
  layer: whole(0),
  head: whole(0),
};
