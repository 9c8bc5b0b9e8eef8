// Parsers of the values in the address. Each returns undefined for an invalid value.

/**
 * @import { Cell } from "./data"
 */

/**
 * @template Value
 * @typedef {(text: string) => Value | undefined} Reader
 */

/**
 * @param {number} min
 * @param {number} max
 * @returns {Reader<number>}
 */
export function readNumber(min = 0, max = 1e9) {
  return (text) => {
    const value = Number(text);
    return text !== "" && value >= min && value <= max ? value : undefined;
  };
}

/**
 * @param {number} [min]
 * @param {number} [max]
 * @returns {Reader<number>}
 */
export function readIndex(min, max) {
  const read = readNumber(min, max);
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
export function readOneOf(...values) {
  return (text) => values.find((value) => value === text);
}

/** @type {Reader<number[]>} */
export function readIndices(text) {
  const values = text.split(",").map(readIndex());
  return values.every((value) => value !== undefined) ? values : undefined;
}

/** @type {Reader<Cell>} */
export function readCell(text) {
  const indices = readIndices(text);
  return indices?.length === 2 ? [indices[0], indices[1]] : undefined;
}

/**
 * Returns a parser of values by position, such as "3:gatto,5:nero".
 *
 * @template Value
 * @param {Reader<Value>} read
 * @returns {Reader<Record<number, Value>>}
 */
export function readRecord(read) {
  return (text) => {
    /** @type {Record<number, Value>} */
    const values = {};
    for (const item of text.split(",")) {
      const [position, encoded] = item.split(":");
      const t = readIndex()(position);
      const value = encoded === undefined ? undefined : read(decode(encoded));
      if (t === undefined || value === undefined) return undefined;
      values[t] = value;
    }
    return values;
  };
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
