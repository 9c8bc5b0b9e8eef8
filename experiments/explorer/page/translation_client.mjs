// Sends translation requests to the worker.

/**
 * @import { Run } from "./data"
 * @import { TextState, Translation } from "./translation.mjs"
 *
 * @typedef {{run: number, checkpoint: number, state: TextState}} Request indices of a run and its checkpoint.
 *
 * @typedef {{translation: Translation | null, error: string | null}} Response
 *
 * @typedef {object} Job a request and the functions that settle its promise.
 * @property {Request} request
 * @property {(translation: Translation | null | undefined) => void} resolve
 * @property {(error: Error) => void} reject
 */

/**
 * Starts a worker that runs the program of this page. The program is part of the URL, because workers cannot be loaded
 * from files.
 *
 * @param {string} program
 * @param {Run[]} runs
 */
export function startWorker(program, runs) {
  const worker = new Worker(`data:text/javascript;charset=utf-8,${encodeURIComponent(program)}`);
  worker.postMessage({ runs });
  return worker;
}

/** Sends one request at a time. A newer request replaces a waiting one of the same view. */
export class TranslationClient {
  /** @param {Worker} worker */
  constructor(worker) {
    this.worker = worker;
    /** @type {Job | null} */
    this.current = null;
    /** @type {Map<string, Job>} by view. */
    this.waiting = new Map();
    worker.addEventListener("message", ({ data }) => this.receive(data));
    worker.addEventListener("error", ({ message }) =>
      this.receive({ translation: null, error: message || "the worker did not start" }),
    );
  }

  /**
   * Returns a translation, null for a text without tokens, or undefined if a newer request has replaced this one.
   *
   * @param {string} view
   * @param {Request} request
   * @returns {Promise<Translation | null | undefined>}
   */
  translate(view, request) {
    return new Promise((resolve, reject) => {
      this.waiting.get(view)?.resolve(undefined);
      this.waiting.set(view, { request, resolve, reject });
      this.sendNext();
    });
  }

  sendNext() {
    const [next] = this.waiting;
    if (this.current || !next) return;
    const [view, job] = next;
    this.waiting.delete(view);
    this.current = job;
    this.worker.postMessage(job.request);
  }

  /** @param {Response} response */
  receive({ translation, error }) {
    const job = this.current;
    this.current = null;
    if (error === null) job?.resolve(translation);
    else job?.reject(new Error(error));
    this.sendNext();
  }
}
