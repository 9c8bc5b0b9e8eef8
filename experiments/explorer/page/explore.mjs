// What holds the page together: its data, its state, what is shown of it.

import { fillControls, listen, showControls } from "./controls.mjs";
import { adler32, unpackArrays } from "./decode_arrays.mjs";
import { find, html, show } from "./dom.mjs";
import { HistoryEntries } from "./history_entries.mjs";
import { liveView } from "./live_view.mjs";
import { recordedView, sentenceOf, unpackSentence } from "./recorded_view.mjs";
import { translate } from "./translation.mjs";
import { DEFAULTS, fromAddress } from "./url_state.mjs";

/**
 * @import { Checkpoint, LiveRun, PageData, Run, Sentence } from "./data"
 * @import { Arrays } from "./decode_arrays.mjs"
 * @import { Change, View } from "./display.mjs"
 * @import { RecordedSides } from "./recorded_view.mjs"
 * @import { TextState, Translation } from "./translation.mjs"
 * @import { State } from "./url_state.mjs"
 */

/** Starts the page, or shows why it cannot. */
export async function explore() {
  try {
    await new Page(readData()).start();
  } catch (error) {
    fail(`This page is damaged: ${messageOf(error)}. Make it again with python -m experiments.explore.`);
  }
}

/** @returns {PageData} */
function readData() {
  const element = find("data", HTMLScriptElement);
  if (String(adler32(new TextEncoder().encode(element.text))) !== element.dataset.sum) {
    throw new Error("its data are not what was written");
  }
  return JSON.parse(element.text);
}

/** @param {unknown} error */
function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/** @param {string} message */
function fail(message) {
  const failure = find("failure", HTMLElement);
  failure.textContent = message;
  failure.hidden = false;
  failure.dataset.is = "told";
}

export class Page {
  /** @param {PageData} data */
  constructor(data) {
    this.data = data;
    this.state = this.within(DEFAULTS);
    this.entries = new HistoryEntries();
    /** @type {Map<Checkpoint, Promise<Arrays>>} */
    this.arrays = new Map();
    /** @type {Map<Sentence, Promise<RecordedSides>>} */
    this.sides = new Map();
    /** @type {Map<string, {key: string, translation: Translation | null}>} the last one at each place. */
    this.translations = new Map();
  }

  async start() {
    fillControls(this.data);
    listen(this);
    window.addEventListener("hashchange", () => this.change(fromAddress(location.hash), "address"));
    find("controls", HTMLElement).hidden = false;
    const beside = this.data.runs.length > 1 ? 1 : null;
    await this.go(location.hash ? fromAddress(location.hash) : { ...DEFAULTS, beside }, "address");
  }

  /**
   * Goes to a state that differs from this one, or back if that fails.
   *
   * @param {Partial<State>} changes
   * @param {string} burst as of `HistoryEntries`.
   */
  async change(changes, burst = "") {
    const before = this.state;
    try {
      await this.go({ ...before, ...changes }, burst);
    } catch (error) {
      this.state = before;
      showControls(this.data, before, this.translationAt("run0"));
      fail(`This could not be shown: ${messageOf(error)}.`);
    }
  }

  /**
   * Shows a state, and writes it into the address.
   *
   * @param {State} state
   * @param {string} burst
   */
  async go(state, burst) {
    const wanted = this.within(state);
    this.state = wanted;
    const shown = [wanted.run, wanted.beside].filter((i) => i !== null);
    const views = await Promise.all(shown.map((i, k) => this.viewOf(this.data.runs[i], `run${k}`, wanted)));
    if (this.state !== wanted) return; // a later one was faster
    this.showViews(views);
    showControls(this.data, wanted, this.translationAt("run0"));
    const failure = find("failure", HTMLElement);
    failure.hidden = true;
    failure.dataset.is = "gone";
    if (views.some(({ panel }) => panel) && burst !== "address") showAbovePanels();
    this.entries.write(wanted, burst);
  }

  /**
   * Returns a state of which the page has the runs, and a text.
   *
   * @param {State} state
   * @returns {TextState}
   */
  within(state) {
    const { runs } = this.data;
    const run = Math.min(state.run, runs.length - 1);
    const beside = state.beside !== null && state.beside < runs.length ? state.beside : null;
    return { ...state, run, beside, text: state.text ?? firstTextOf([runs[run], ...runs]) };
  }

  /** @param {View[]} views */
  showViews(views) {
    const articles = views.map(({ article }) => article);
    const panels = views.map(({ panel }) => panel).filter((panel) => panel !== null);
    const aside = panels.length ? html("aside", { class: "panels", "data-kept": "panels" }, panels) : null;
    show(find("results", HTMLElement), html("div", { class: "articles" }, articles), aside);
    find("said", HTMLElement).textContent = views[0].spoken;
  }

  /**
   * Draws a run at a place of the page.
   *
   * @param {Run} run
   * @param {string} id of the place.
   * @param {TextState} state
   */
  async viewOf(run, id, state) {
    /** @type {Change} */
    const change = (changes, burst) => this.change(changes, burst);
    if (!run.checkpoints) {
      const sentence = sentenceOf(run, state);
      const sides = await cached(this.sides, sentence, () => unpackSentence(sentence));
      return recordedView(Object.freeze({ run, state, id, change }), sides);
    }
    const checkpoint = checkpointOf(run, state);
    const arrays = await cached(this.arrays, checkpoint, () => unpackArrays(checkpoint.arrays, run.layout));
    const { text, beam, temperature, seed, masked, words, rows, hypothesis } = state;
    const changed = { text, beam, temperature, seed, masked, words, rows, hypothesis };
    const key = JSON.stringify([this.data.runs.indexOf(run), checkpoint.step, changed]);
    // A translation is computed again only if something has changed that it depends on.
    if (this.translations.get(id)?.key !== key) {
      this.translations.set(id, { key, translation: translate(run, arrays, state) });
    }
    const display = Object.freeze({ run, state, id, change });
    return liveView(display, checkpoint.step, this.translationAt(id));
  }

  /**
   * Returns the last translation at a place of the page.
   *
   * @param {string} id
   */
  translationAt(id) {
    return this.translations.get(id)?.translation ?? null;
  }
}

/**
 * Returns the value of a key, which is computed once.
 *
 * @template Key, Value
 * @param {Map<Key, Value>} values
 * @param {Key} key
 * @param {() => Value} compute
 */
function cached(values, key, compute) {
  const value = values.get(key) ?? compute();
  values.set(key, value);
  return value;
}

/** Scrolls, if needed, until a word or cell that the user has selected is not behind the panel of its step. */
function showAbovePanels() {
  const focused = document.activeElement?.closest(".articles") ? document.activeElement : null;
  const selected = focused ?? find("results", HTMLElement).querySelector('.targets [aria-pressed="true"]');
  selected?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/**
 * Returns the first sentence that there is to choose.
 *
 * @param {Run[]} runs
 */
function firstTextOf(runs) {
  const texts = runs.flatMap((run) =>
    run.checkpoints
      ? run.examples.map(({ source }) => source)
      : run.sentences.map((each) => each.source_text),
  );
  return texts[0] ?? "";
}

/**
 * Returns the run's last checkpoint that is not after the chosen step, or the one that it translates with.
 *
 * @param {LiveRun} run
 * @param {State} state
 */
function checkpointOf(run, state) {
  const wanted = state.step ?? run.step;
  return run.checkpoints.filter(({ step }) => step <= wanted).at(-1) ?? run.checkpoints[0];
}
