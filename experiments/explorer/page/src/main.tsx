// Starts the page, or its worker. Without either, as in tests with Node, only the exports are used.

import { render } from "preact";
import { App } from "./app";
import type { PageData } from "./data";
import { answerRequests, startWorker } from "./worker";

export { fromAddress, toAddress } from "./address";
export { decodeArrays, decodeWeights } from "./arrays";
export { formulasOf } from "./formulas";
export { alignmentErrorRate, describeRange, highlightedTokens } from "./grid";
export { strongestWeights } from "./overview";
export { detokenize, toIds, tokenize } from "./tokenizer";
export { translate } from "./translation";

if ("importScripts" in globalThis) answerRequests(self);
else if (globalThis.document) start();

function start(): void {
  const page = document.getElementById("page") as HTMLElement;
  const [json, program] = ["data", "program"].map((id) => document.getElementById(id)?.textContent ?? "");
  try {
    const data: PageData = JSON.parse(json);
    document.title = `Attention explorer: ${data.runs.map(({ name }) => name).join(", ")}`;
    page.replaceChildren();
    render(<App data={data} worker={startWorker(program, data)} />, page);
  } catch (error) {
    const reason = (error as Error).message;
    page.textContent = `This page is damaged: ${reason}. Write it again with python -m experiments.explore.`;
  }
}
