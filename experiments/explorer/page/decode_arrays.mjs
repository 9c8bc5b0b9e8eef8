// Decodes arrays that encode_arrays.py has encoded as text.

/**
 * @import { ArrayLayout, PackedWeights } from "./data"
 * @import { Matrix } from "./linalg.mjs"
 *
 * @typedef {object} Arrays the parameters of a checkpoint, by name.
 * @property {Record<string, Float32Array>} vectors
 * @property {Record<string, Matrix>} matrices
 */

const ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
const CODES = new Uint8Array(128).fill(255);
for (const [code, character] of [...ALPHABET].entries()) CODES[character.charCodeAt(0)] = code;

/**
 * Returns the float32 arrays of a checkpoint.
 *
 * @param {string} text
 * @param {ArrayLayout[]} layout names and shapes, in order.
 */
export async function unpackArrays(text, layout) {
  const count = layout.reduce((sum, { shape }) => sum + sizeOf(shape), 0);
  const view = new DataView(await unpack(text, 4, count));
  const values = Float32Array.from({ length: count }, (_, i) => view.getFloat32(4 * i, true));
  /** @type {Arrays} */
  const arrays = { vectors: {}, matrices: {} };
  let first = 0;
  for (const { name, shape } of layout) {
    const data = values.subarray(first, first + sizeOf(shape));
    first += data.length;
    if (shape.length === 2) arrays.matrices[name] = { rows: shape[0], columns: shape[1], data };
    else arrays.vectors[name] = data;
  }
  return arrays;
}

/**
 * Returns recorded weights, which are rounded to 1/65,535 of their range.
 *
 * @param {PackedWeights} packed
 */
export async function unpackWeights({ weights, shape, low, high }) {
  const view = new DataView(await unpack(weights, 2, sizeOf(shape)));
  const weight = (/** @type {unknown} */ _, /** @type {number} */ i) =>
    low + ((high - low) * view.getUint16(2 * i, true)) / 65535;
  return Float32Array.from({ length: sizeOf(shape) }, weight);
}

/** @param {number[]} shape */
function sizeOf(shape) {
  return shape.reduce((product, length) => product * length, 1);
}

/**
 * Returns the bytes of encoded numbers, with the bytes of each number together.
 *
 * @param {string} text
 * @param {number} width the number of bytes of a number.
 * @param {number} count of numbers.
 */
async function unpack(text, width, count) {
  const bytes = await gunzip(decodeBase85(text));
  if (bytes.length !== width * count) {
    throw new Error(`expected ${width * count} bytes of numbers, got ${bytes.length}`);
  }
  const interleaved = new Uint8Array(bytes.length);
  for (let plane = 0; plane < width; plane++) {
    for (let i = 0; i < count; i++) interleaved[width * i + plane] = bytes[plane * count + i];
  }
  return interleaved.buffer;
}

/** @param {Uint8Array<ArrayBuffer>} bytes */
async function gunzip(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  try {
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new Error("its numbers are damaged");
  }
}

/**
 * Returns the Adler-32 checksum of bytes.
 *
 * @param {Uint8Array} bytes
 */
export function adler32(bytes) {
  let [low, high] = [1, 0];
  for (let i = 0; i < bytes.length; i++) {
    low = (low + bytes[i]) % 65521;
    high = (high + low) % 65521;
  }
  return high * 65536 + low;
}

/**
 * Decodes base 85: five characters for four bytes.
 *
 * @param {string} text
 */
function decodeBase85(text) {
  const bytes = new Uint8Array(Math.floor((text.length * 4) / 5));
  for (let i = 0, next = 0; i < text.length; i += 5) {
    let number = 0;
    for (let j = i; j < i + 5; j++) {
      const code = j < text.length ? (CODES[text.charCodeAt(j)] ?? 255) : 84;
      if (code === 255) throw new Error(`expected numbers as text, got ${JSON.stringify(text[j])}`);
      number = number * 85 + code;
    }
    for (let shift = 24; shift >= 0 && next < bytes.length; shift -= 8)
      bytes[next++] = (number / 2 ** shift) & 255;
  }
  return bytes;
}
