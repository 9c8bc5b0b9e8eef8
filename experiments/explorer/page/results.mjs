// The part of the page below the controls, and the error message.

import { getElement, html, render } from "./dom.mjs";

/** @import { View } from "./display.mjs" */

/** @param {View[]} views */
export function renderViews(views) {
  const panels = views.map(({ panel }) => panel).filter((panel) => panel !== null);
  const aside = panels.length ? html("aside", { class: "panels", "data-kept": "panels" }, panels) : null;
  const articles = html(
    "div",
    { class: "articles" },
    views.map(({ article }) => article),
  );
  render(getElement("results", HTMLElement), articles, aside);
  getElement("spoken", HTMLElement).textContent = views[0].spoken;
}

/** Scrolls to the selected word or cell, if it is outside the window. */
export function scrollToSelection() {
  const focused = document.activeElement?.closest(".articles") ? document.activeElement : null;
  const selected = focused ?? document.querySelector('.articles [aria-selected="true"]');
  selected?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** @param {unknown} error */
export function describeError(error) {
  return error instanceof Error ? error.message : String(error);
}

/** @param {string} message */
export function showFailure(message) {
  const failure = getElement("failure", HTMLElement);
  failure.textContent = message;
  failure.hidden = false;
  failure.dataset.is = "shown";
}

export function hideFailure() {
  const failure = getElement("failure", HTMLElement);
  failure.hidden = true;
  failure.dataset.is = "hidden";
}

/**
 * Marks the results as out of date while the worker translates.
 *
 * @param {boolean} isBusy
 */
export function setBusy(isBusy) {
  getElement("results", HTMLElement).ariaBusy = String(isBusy);
}
