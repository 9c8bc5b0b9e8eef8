// The worker that translates, so that a long search does not block the page.

import { unpackArrays } from "./decode_arrays.mjs";
import { translate } from "./translation.mjs";

/**
 * @import { Run } from "./data"
 * @import { Arrays } from "./decode_arrays.mjs"
 * @import { Request, Response } from "./translation_client.mjs"
 */

/** Answers the requests of the page. */
export function main() {
  /** @type {Run[]} */
  let runs = [];
  /** @type {Map<string, Promise<Arrays>>} */
  const arraysByKey = new Map();

  /** @param {Request} request */
  async function answer({ run: index, checkpoint, state }) {
    const run = runs[index];
    if (!run.checkpoints) throw new Error(`run ${run.name} must have checkpoints`);
    const key = `${index},${checkpoint}`;
    const arrays = arraysByKey.get(key) ?? unpackArrays(run.checkpoints[checkpoint].arrays, run.layout);
    arraysByKey.set(key, arrays);
    return translate(run, await arrays, state);
  }

  self.addEventListener("message", async ({ data }) => {
    if (data.runs) {
      runs = data.runs;
      return;
    }
    /** @type {Response} */
    let response;
    try {
      response = { translation: await answer(data), error: null };
    } catch (error) {
      response = { translation: null, error: error instanceof Error ? error.message : String(error) };
    }
    self.postMessage(response);
  });
}
