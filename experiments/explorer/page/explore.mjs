// Starts the page.

import { adler32 } from "./decode_arrays.mjs";
import { getElement } from "./dom.mjs";
import { Page } from "./page.mjs";
import { describeError, showFailure } from "./results.mjs";
import { startWorker, TranslationClient } from "./translation_client.mjs";

/** @import { PageData } from "./data" */

/** Starts the page, or shows an error. */
export async function main() {
  try {
    const data = readData();
    const program = getElement("program", HTMLScriptElement).text;
    await new Page(data, new TranslationClient(startWorker(program, data.runs))).start();
  } catch (error) {
    const reason = describeError(error);
    showFailure(`This page is damaged: ${reason}. Write it again with python -m experiments.explore.`);
  }
}

/** @returns {PageData} */
function readData() {
  const element = getElement("data", HTMLScriptElement);
  if (String(adler32(new TextEncoder().encode(element.text))) !== element.dataset.sum) {
    throw new Error("the checksum of its data does not match");
  }
  return JSON.parse(element.text);
}
