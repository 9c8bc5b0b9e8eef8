// The page: its data, its state, and the views of the runs that the state selects.

import { fillControls, showControls } from "./control_values.mjs";
import { listen } from "./controls.mjs";
import { getElement } from "./dom.mjs";
import { HistoryEntries } from "./history_entries.mjs";
import { liveView } from "./live_view.mjs";
import { Player } from "./player.mjs";
import { recordedView, sentenceOf, unpackSentence } from "./recorded_view.mjs";
import {
  describeError,
  hideFailure,
  renderViews,
  scrollToSelection,
  setBusy,
  showFailure,
} from "./results.mjs";
import { DEFAULTS, fromAddress } from "./url_state.mjs";

/**
 * @import { LiveRun, PageData, Run, Sentence } from "./data"
 * @import { View } from "./display.mjs"
 * @import { RecordedSides } from "./recorded_view.mjs"
 * @import { TextState, Translation } from "./translation.mjs"
 * @import { TranslationClient } from "./translation_client.mjs"
 * @import { State } from "./url_state.mjs"
 *
 * @typedef {Promise<Translation | null | undefined>} PendingTranslation
 */

export class Page {
  /**
   * @param {PageData} data
   * @param {TranslationClient} client
   */
  constructor(data, client) {
    this.data = data;
    this.client = client;
    this.state = this.validated(DEFAULTS);
    this.entries = new HistoryEntries();
    this.player = new Player(this);
    /** @type {Map<Sentence, Promise<RecordedSides>>} */
    this.sides = new Map();
    /** @type {Map<string, {key: string, translation: PendingTranslation}>} the last request of each view. */
    this.requests = new Map();
    /** @type {Translation | null} the translation of the first view. */
    this.translation = null;
  }

  async start() {
    fillControls(this.data);
    listen(this);
    window.addEventListener("hashchange", () => this.change(fromAddress(location.hash), "address"));
    getElement("controls", HTMLElement).hidden = false;
    const compare = this.data.runs.length > 1 ? 1 : null;
    await this.show(location.hash ? fromAddress(location.hash) : { ...DEFAULTS, compare }, "address");
  }

  /**
   * Changes the state. If the new state cannot be shown, the previous one stays.
   *
   * @param {Partial<State>} changes
   * @param {string} group see `HistoryEntries`.
   */
  async change(changes, group = "") {
    this.player.stop();
    await this.update(changes, group);
  }

  /**
   * The same, without stopping the player.
   *
   * @param {Partial<State>} changes
   * @param {string} group
   */
  async update(changes, group) {
    const previous = this.state;
    try {
      await this.show({ ...previous, ...changes }, group);
    } catch (error) {
      this.state = previous;
      showControls(this.data, previous, this.translation);
      showFailure(`This change failed: ${describeError(error)}.`);
    }
  }

  /**
   * Shows a state and writes it to the address.
   *
   * @param {State} newState
   * @param {string} group
   */
  async show(newState, group) {
    const state = this.validated(newState);
    this.state = state;
    setBusy(true);
    try {
      const indices = [state.run, state.compare].filter((index) => index !== null);
      const draws = await Promise.all(indices.map((index, i) => this.prepare(index, `run${i}`, state)));
      if (this.state !== state) return; // a newer state is shown
      renderViews(draws.map((draw) => draw()));
      showControls(this.data, state, this.translation);
      hideFailure();
      if (group !== "address") scrollToSelection();
      this.entries.write(state, group);
    } finally {
      if (this.state === state) setBusy(false);
    }
  }

  /**
   * Returns a state with a text, without runs that do not exist.
   *
   * @param {State} state
   * @returns {TextState}
   */
  validated(state) {
    const { runs } = this.data;
    const run = Math.min(state.run, runs.length - 1);
    const compare = state.compare !== null && state.compare < runs.length ? state.compare : null;
    return { ...state, run, compare, text: state.text ?? firstText([runs[run], ...runs]) };
  }

  /**
   * Returns a function that draws a run, once its data are available.
   *
   * @param {number} index of the run.
   * @param {string} id of the view.
   * @param {TextState} state
   * @returns {Promise<() => View>}
   */
  async prepare(index, id, state) {
    const run = this.data.runs[index];
    const change = this.change.bind(this);
    if (!run.checkpoints) {
      const sentence = sentenceOf(run, state);
      const sides = this.sides.get(sentence) ?? unpackSentence(sentence);
      this.sides.set(sentence, sides);
      const unpacked = await sides;
      return () => recordedView(Object.freeze({ run, state, id, change }), unpacked);
    }
    const checkpoint = checkpointOf(run, state);
    const translation = (await this.translate(index, id, checkpoint, state)) ?? null;
    return () => {
      if (id === "run0") this.translation = translation;
      const display = Object.freeze({ run, state, id, change });
      return liveView(display, run.checkpoints[checkpoint].step, translation);
    };
  }

  /**
   * Translates a text, unless the last request of the view has the same translation.
   *
   * @param {number} run
   * @param {string} id of the view.
   * @param {number} checkpoint
   * @param {TextState} state
   * @returns {PendingTranslation}
   */
  translate(run, id, checkpoint, state) {
    const { text, beamSize, temperature, seed, masked, forcedWords, weightOverrides, hypothesis } = state;
    const inputs = { text, beamSize, temperature, seed, masked, forcedWords, weightOverrides, hypothesis };
    const key = JSON.stringify([run, checkpoint, inputs]);
    const last = this.requests.get(id);
    if (last?.key === key) return last.translation;
    const translation = this.client.translate(id, { run, checkpoint, state });
    this.requests.set(id, { key, translation });
    translation.catch(() => this.requests.delete(id)); // so that it can be tried again
    return translation;
  }
}

/**
 * Returns the first example sentence.
 *
 * @param {Run[]} runs
 */
function firstText(runs) {
  const texts = runs.flatMap((run) =>
    run.checkpoints
      ? run.examples.map(({ source }) => source)
      : run.sentences.map(({ source_text }) => source_text),
  );
  return texts[0] ?? "";
}

/**
 * Returns the index of the last checkpoint up to the selected training step.
 *
 * @param {LiveRun} run
 * @param {State} state
 */
function checkpointOf(run, state) {
  const selected = state.checkpoint ?? run.step;
  return Math.max(run.checkpoints.filter(({ step }) => step <= selected).length - 1, 0);
}
