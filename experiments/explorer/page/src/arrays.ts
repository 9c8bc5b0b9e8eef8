// Decodes the arrays of the page, which encode_arrays.py has encoded as base64 of gzip.

import type { LiveRun, PackedWeights } from "./data";
import type { Matrix } from "./linalg";

/** The parameters of a checkpoint, by name. */
export interface Arrays {
  vectors: Record<string, Float32Array>;
  matrices: Record<string, Matrix>;
}

/** Returns the arrays of a checkpoint. */
export async function decodeArrays(text: string, layout: LiveRun["layout"]): Promise<Arrays> {
  const values = new Float32Array(await decode(text));
  const arrays: Arrays = { vectors: {}, matrices: {} };
  let first = 0;
  for (const { name, shape } of layout) {
    const data = values.subarray(first, first + sizeOf(shape));
    first += sizeOf(shape);
    if (shape.length === 2) arrays.matrices[name] = { rows: shape[0], columns: shape[1], data };
    else arrays.vectors[name] = data;
  }
  if (first !== values.length) throw new Error(`expected ${first} numbers, got ${values.length}`);
  return arrays;
}

/** Returns recorded weights. */
export async function decodeWeights({ weights, low, high }: PackedWeights): Promise<Float32Array> {
  const rounded = new Uint16Array(await decode(weights));
  return Float32Array.from(rounded, (value) => low + ((high - low) * value) / 65535);
}

function sizeOf(shape: number[]): number {
  return shape.reduce((product, length) => product * length, 1);
}

async function decode(text: string): Promise<ArrayBuffer> {
  try {
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return await new Response(stream).arrayBuffer();
  } catch {
    throw new Error("its arrays are damaged");
  }
}
