// The entries of the browser history: one for each change, so that the Back button undoes the last one.

import { toAddress } from "./url_state.mjs";

/** @import { State } from "./url_state.mjs" */

const GROUP_TIMEOUT = 1000; // milliseconds without a change that end a group
const WRITE_DELAY = 200; // milliseconds, because browsers limit the rate of address changes

export class HistoryEntries {
  constructor() {
    this.group = "";
    this.groupEnd = 0;
    this.timer = 0;
    /** @type {string | null} */
    this.pendingAddress = null; // of the current entry
  }

  /**
   * Writes a state to the address.
   *
   * @param {State} state
   * @param {string} group successive changes of the same group, such as typing, share one entry. "address": the state
   *   belongs to the current entry. "": the change has a separate entry.
   */
  write(state, group) {
    const [address, now] = [`#${toAddress(state)}`, performance.now()];
    const isContinued = group && group === this.group && now < this.groupEnd;
    [this.group, this.groupEnd] = [group, now + GROUP_TIMEOUT];
    if (group === "address") this.pendingAddress = null;
    if (group === "address" || isContinued) {
      this.pendingAddress = address;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.flush(), WRITE_DELAY);
      return;
    }
    this.flush();
    if (address !== location.hash) history.pushState(null, "", address);
  }

  /** Writes the address of the current entry. */
  flush() {
    clearTimeout(this.timer);
    if (this.pendingAddress !== null) history.replaceState(null, "", this.pendingAddress);
    this.pendingAddress = null;
  }
}
