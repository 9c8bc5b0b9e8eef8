// A worker translates, so that a long search does not block the page.

import { useEffect, useState } from "preact/hooks";
import { type Arrays, decodeArrays } from "./arrays";
import type { Checkpoint, LiveRun, PageData } from "./data";
import { type Translation, type TranslationOptions, translate } from "./translation";

/** A request of the article with an index. */
interface Request {
  article: number;
  run: number; // indices of a run and its checkpoint
  checkpoint: number;
  options: TranslationOptions;
}

/** The answer to a request. The translation is null for a text without tokens. */
interface Answer {
  request: Request;
  translation: Translation | null;
  error: string | null;
}

/** Answers the requests of the page, in the worker. */
export function answerRequests(scope: typeof self): void {
  let data: PageData = { runs: [] };
  const arrays = new Map<Checkpoint, Promise<Arrays>>();
  const newest = new Map<number, Request>(); // of each article

  scope.addEventListener("message", async ({ data: message }) => {
    if (message.runs) {
      data = message;
      return;
    }
    newest.set(message.article, message);
    await new Promise((resolve) => setTimeout(resolve)); // receives newer requests, which replace this one
    if (newest.get(message.article) === message) scope.postMessage(await answer(message));
  });

  async function answer(request: Request): Promise<Answer> {
    try {
      const run = data.runs[request.run] as LiveRun;
      const checkpoint = run.checkpoints[request.checkpoint];
      const decoded = arrays.get(checkpoint) ?? decodeArrays(checkpoint.arrays, run.layout);
      arrays.set(checkpoint, decoded);
      return { request, translation: translate(run, await decoded, request.options), error: null };
    } catch (error) {
      return { request, translation: null, error: (error as Error).message };
    }
  }
}

/** Starts a worker that runs the program of this page. */
export function startWorker(program: string, data: PageData): Worker {
  const worker = new Worker(URL.createObjectURL(new Blob([program], { type: "text/javascript" })));
  worker.postMessage(data);
  return worker;
}

/**
 * Returns the newest answer for an article, which may be that to an earlier request, and whether it is the answer to
 * this one. Without a request, there is no answer.
 */
export function useTranslation(worker: Worker, request: Request | null) {
  const [answer, setAnswer] = useState<Answer | null>(null);
  const key = JSON.stringify(request);
  useEffect(() => {
    if (!request) return;
    const controller = new AbortController();
    const receive = ({ data }: MessageEvent<Answer>) =>
      JSON.stringify(data.request) === key && setAnswer(data);
    const fail = () => setAnswer({ request, translation: null, error: "the worker has stopped" });
    worker.addEventListener("message", receive, controller);
    worker.addEventListener("error", fail, controller);
    worker.postMessage(request);
    return () => controller.abort();
  }, [key]);
  const isBusy = request !== null && JSON.stringify(answer?.request) !== key;
  return { answer: answer?.request.run === request?.run ? answer : null, isBusy };
}
