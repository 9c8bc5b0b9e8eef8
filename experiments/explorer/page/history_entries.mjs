// The entries of the browser's history: one for each change, so that its Back button undoes the last one.

import { toAddress } from "./url_state.mjs";

/** @import { State } from "./url_state.mjs" */

const BURST = 1000; // milliseconds without a change that end a burst of them
const WRITTEN_AFTER = 200; // milliseconds: browsers take no address at every key

export class HistoryEntries {
  constructor() {
    this.burst = "";
    this.ends = 0;
    this.timer = 0;
    /** @type {string | null} */
    this.unwritten = null; // the address of the last entry, if it is not there yet
  }

  /**
   * Writes a state into the address.
   *
   * @param {State} state
   * @param {string} burst names changes that follow each other quickly, such as of a text while it is typed:
   *   they are one entry; "address" for a state that has an entry already; "" for a change by itself.
   */
  write(state, burst) {
    const [address, now] = [`#${toAddress(state)}`, performance.now()];
    const continues = burst === "address" || (burst && burst === this.burst && now < this.ends);
    [this.burst, this.ends] = [burst, now + BURST];
    if (burst === "address") this.unwritten = null;
    if (continues) {
      this.unwritten = address;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.finish(), WRITTEN_AFTER);
      return;
    }
    this.finish();
    if (address !== location.hash) history.pushState(null, "", address);
  }

  /** Writes the address of the last entry. */
  finish() {
    clearTimeout(this.timer);
    if (this.unwritten !== null) history.replaceState(null, "", this.unwritten);
    this.unwritten = null;
  }
}
