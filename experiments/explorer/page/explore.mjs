// What holds the page together: its data, its state, what is shown of it.

import { DEFAULTS, fromAddress } from "./address.mjs";
import { adler32, unpackArrays } from "./arrays.mjs";
import { fillControls, listen, showControls } from "./controls.mjs";
import { html, show } from "./dom.mjs";
import { Entries } from "./entries.mjs";
import { live } from "./live.mjs";
import { recorded, sentenceOf, unpackSentence } from "./recorded.mjs";
import { translated } from "./translated.mjs";

const find = (id) => document.getElementById(id);

/** Begins, or says why not. */
export async function explore() {
  try {
    await new Page(readData()).begin();
  } catch (error) {
    fail(`This page is damaged: ${error.message}. Make it again with python -m experiments.explore.`);
  }
}

function readData() {
  const text = find("data").textContent;
  if (String(adler32(new TextEncoder().encode(text))) !== find("data").dataset.sum) {
    throw new Error("its data are not what was written");
  }
  return JSON.parse(text);
}

function fail(told) {
  find("failure").textContent = told;
  find("failure").hidden = false;
  find("failure").dataset.is = "told";
}

class Page {
  constructor(data) {
    this.data = data;
    this.state = DEFAULTS;
    this.unpacked = new Map(); // promises, by what is unpacked
    this.found = new Map(); // the last translation of each place, by what it was made of
    this.entries = new Entries();
  }

  async begin() {
    fillControls(this.data);
    listen(this);
    window.addEventListener("hashchange", () => this.change(fromAddress(location.hash), "address"));
    find("controls").hidden = false;
    const beside = this.data.runs.length > 1 ? 1 : null;
    await this.go(location.hash ? fromAddress(location.hash) : { ...DEFAULTS, beside }, "address");
  }

  /** Goes to a state that is partly another; `burst` is that of `Entries`. */
  async change(changed, burst = "") {
    const before = this.state;
    try {
      await this.go({ ...before, ...changed }, burst);
    } catch (error) {
      this.state = before;
      if (before !== DEFAULTS) showControls(this.data, before, this.found.get("run0")?.found);
      fail(`This could not be shown: ${error.message}.`);
    }
  }

  /** Shows a state, and writes it into the address. */
  async go(state, burst) {
    const { runs } = this.data;
    const run = Math.min(state.run, runs.length - 1);
    const beside = state.beside !== null && state.beside < runs.length ? state.beside : null;
    const text = state.text ?? firstTextOf([runs[run], ...runs]);
    const wanted = { ...state, run, beside, text };
    this.state = wanted;
    const shown = [run, beside].filter((i) => i !== null);
    const parts = await Promise.all(shown.map((i, k) => this.partsOf(i, `run${k}`)));
    if (this.state !== wanted) return; // a later one was faster
    const panels = parts.map(({ panel }) => panel).filter(Boolean);
    show(
      find("results"),
      html("div", { class: "articles" }, ...parts.map(({ article }) => article)),
      panels.length ? html("aside", { class: "panels", "data-kept": "panels" }, panels) : null,
    );
    showControls(this.data, wanted, this.found.get("run0")?.found);
    find("said").textContent = find("results").querySelector(".text")?.innerText ?? "";
    find("failure").hidden = true;
    find("failure").dataset.is = "gone";
    if (panels.length && burst !== "address") showAbovePanels();
    this.entries.write(wanted, burst);
  }

  /** Returns what is shown of a run at a place of the page: an article, and the panel of a step that is open. */
  async partsOf(i, place) {
    const run = this.data.runs[i];
    const { state } = this;
    const change = (changed, burst) => this.change(changed, burst);
    if (!run.checkpoints) {
      const sentence = sentenceOf(run, state);
      const sides = await this.once(sentence, () => unpackSentence(sentence));
      return recorded(run, sentence, sides, state, place, change);
    }
    const checkpoint = checkpointOf(run, state);
    const arrays = await this.once(`${i} ${checkpoint.step}`, () =>
      unpackArrays(checkpoint.arrays, run.layout),
    );
    const found = this.translated(run, arrays, state, place, `${i} ${checkpoint.step}`);
    return live(run, found, checkpoint.step, state, place, change);
  }

  /** Returns what `unpack` makes, which is made once. */
  once(key, unpack) {
    if (!this.unpacked.has(key)) this.unpacked.set(key, unpack());
    return this.unpacked.get(key);
  }

  /** Returns the translation of a state, the last one again if nothing has changed that it is made of. */
  translated(run, arrays, state, place, which) {
    const { text, beam, temperature, seed, masked, words, rows, hypothesis } = state;
    const key = JSON.stringify([which, text, beam, temperature, seed, masked, words, rows, hypothesis]);
    if (this.found.get(place)?.key !== key)
      this.found.set(place, { key, found: translated(run, arrays, state) });
    return this.found.get(place).found;
  }
}

/** Scrolls, if it must, to where a word or cell that a person has chosen is not behind the panel of its step. */
function showAbovePanels() {
  const focused = document.activeElement.closest(".articles") ? document.activeElement : null;
  const chosen = focused ?? find("results").querySelector('.targets [aria-pressed="true"]');
  chosen?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** Returns the first sentence that there is to choose. */
function firstTextOf(runs) {
  const [first] = runs.flatMap(({ examples, sentences }) => [...(examples ?? []), ...(sentences ?? [])]);
  return first?.source ?? first?.source_text ?? "";
}

/** Returns the run's last checkpoint that is not after the chosen step, or the one that it translates with. */
function checkpointOf(run, state) {
  const wanted = state.step ?? run.step;
  return run.checkpoints.filter(({ step }) => step <= wanted).at(-1) ?? run.checkpoints[0];
}
