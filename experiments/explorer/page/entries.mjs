// The entries of the browser's history: one for each change, so that its Back button undoes the last one.

import { toAddress } from "./address.mjs";

const BURST = 1000; // milliseconds without a change that end a burst of them
const WRITTEN_AFTER = 200; // milliseconds: browsers take no address at every key

export class Entries {
  constructor() {
    this.burst = "";
    this.ends = 0;
    this.timer = null;
    this.unwritten = null; // the address of the last entry, if it is not there yet
  }

  /**
   * Writes a state into the address.
   *
   * @param {object} state
   * @param {string} burst names changes of which many follow each other, such as of a text while it is typed:
   *   they are one entry; "address" for a state that an entry had already; "" for a change by itself.
   */
  write(state, burst) {
    const [address, now] = [`#${toAddress(state)}`, performance.now()];
    const goesOn = burst === "address" || (burst && burst === this.burst && now < this.ends);
    [this.burst, this.ends] = [burst, now + BURST];
    if (burst === "address") this.unwritten = null;
    if (goesOn) {
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
