// Plays a translation word by word.

import { strongestCell } from "./display.mjs";
import { getElement } from "./dom.mjs";

/** @import { Page } from "./page.mjs" */

const INTERVAL = 900; // milliseconds for each word
const REDUCED_MOTION_INTERVAL = 2500;

export class Player {
  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    this.timer = 0;
  }

  toggle() {
    if (this.timer) this.stop();
    else this.start();
  }

  start() {
    const isReduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.timer = setInterval(() => this.advance(), isReduced ? REDUCED_MOTION_INTERVAL : INTERVAL);
    this.showState("Pause");
    const numShown = this.page.state.numShown ?? Infinity;
    this.page.update(stepChanges(this.page, numShown < numWords(this.page) ? numShown + 1 : 1), "");
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.showState("Play");
  }

  advance() {
    const numShown = (this.page.state.numShown ?? 0) + 1;
    this.page.update(stepChanges(this.page, numShown), "address");
    if (numShown >= numWords(this.page)) this.stop();
  }

  /** @param {string} label */
  showState(label) {
    getElement("play", HTMLButtonElement).textContent = label;
  }
}

/**
 * Returns the changes that show the first words of the translation. A selected step moves to the last one of them.
 *
 * @param {Page} page
 * @param {number} numShown
 */
export function stepChanges(page, numShown) {
  const { state, translation } = page;
  const count = Math.max(Math.min(numShown, numWords(page)), 0);
  const cell = state.cell && translation && count ? strongestCell(translation, count - 1) : null;
  return { numShown: count, cell };
}

/**
 * Returns the number of words of the translation, with EOS.
 *
 * @param {Page} page
 */
export function numWords({ translation }) {
  return translation?.rows.length ?? 0;
}
