// The state of the page. The part of the address after "#" holds it, so that Back in the browser undoes a change.

import { useEffect, useState } from "preact/hooks";
import type { Cell, PageData, Run, Side } from "./data";
import type { TranslationOptions } from "./translation";

export interface State extends TranslationOptions {
  run: string; // names of the run, and of a second run on the same text
  compare: string | null;
  checkpoint: number | null; // training step; null for the checkpoint that the run translates with
  view: "heatmap" | "arcs";
  numShown: number | null; // number of target tokens that are shown; null for all
  cell: Cell | null; // the selected target and source position
  /** Of a recorded run. Null for the mean of all layers or heads. */
  side: Side;
  layer: number | null;
  head: number | null;
  find: string; // tokens that contain this text are marked
}

/** Changes fields of the state. `isEntry: false` changes the current entry of the browser history. */
export type Change = (changes: Partial<State>, options?: { isEntry: boolean }) => void;

/** What many components need. */
export interface PageProps {
  data: PageData;
  state: State;
  change: Change;
}

const WRITE_DELAY = 500; // milliseconds; changes that follow each other faster, such as typing, are one entry
export const BEAM_SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

/** Returns the state of the address, a function that changes both, and the problems of the address. */
export function useAddress(data: PageData) {
  const read = () => ({ ...fromAddress(location.hash, data), write: "" });
  const [current, setCurrent] = useState(read);
  useEffect(() => window.addEventListener("hashchange", () => setCurrent(read())), []);
  useEffect(() => {
    if (!current.write) return;
    const timer = setTimeout(() => {
      const address = toAddress(current.state, data);
      if (current.write === "replace") history.replaceState(null, "", address);
      else if (address !== (location.hash || "#")) history.pushState(null, "", address);
    }, WRITE_DELAY);
    return () => clearTimeout(timer);
  }, [current]);
  const change: Change = (changes, { isEntry } = { isEntry: true }) =>
    setCurrent(({ state, problems }) => {
      return { state: { ...state, ...changes }, problems, write: isEntry ? "push" : "replace" };
    });
  return { state: current.state, problems: current.problems, change };
}

/** Returns the state of a page without an address: the first two runs and the first text. */
function defaultState({ runs: [run, other] }: PageData): State {
  return {
    ...withText(run.checkpoints ? (run.examples[0]?.source ?? "") : run.sentences[0].source_text),
    run: run.name,
    compare: other?.name ?? null,
    checkpoint: null,
    beamSize: null,
    view: "heatmap",
    side: "decoder",
    layer: null,
    head: null,
    find: "",
  };
}

/** Returns the changes of a state to another text, without changed tokens. */
export function withText(text: string) {
  return { text, hidden: [], forced: {}, overrides: {}, hypothesis: 0, numShown: null, cell: null };
}

/** Returns the changes of a state to the translation of the run. */
export function withReset({ text }: State) {
  return { ...withText(text), beamSize: null, checkpoint: null };
}

/** Returns the address of a state: its fields that are not the default, as JSON. */
export function toAddress(state: State, data: PageData): string {
  const initial = defaultState(data);
  const isChanged = (name: string) =>
    JSON.stringify(state[name as keyof State]) !== JSON.stringify(initial[name as keyof State]);
  const fields = Object.entries(state).filter(([name]) => isChanged(name));
  return fields.length ? `#${encodeURIComponent(JSON.stringify(Object.fromEntries(fields)))}` : "#";
}

/** Returns the state of an address, and its problems. A field with a problem has its default. */
export function fromAddress(address: string, data: PageData): { state: State; problems: string[] } {
  const state = defaultState(data);
  const rules: Record<string, Rule> = rulesOf(data);
  const problems: string[] = [];
  try {
    const fields = JSON.parse(decodeURIComponent(address.slice(1)) || "{}");
    for (const [name, value] of Object.entries(fields)) {
      const [test, allowed] = Object.hasOwn(rules, name) ? rules[name] : [() => false, "absent"];
      if (test(value)) Object.assign(state, { [name]: value });
      else problems.push(`${name} must be ${allowed}, got ${JSON.stringify(value)}`);
    }
  } catch {
    problems.push("it is not JSON");
  }
  return { state, problems };
}

/** Whether a value is valid, and what is allowed, in words. */
type Rule = [test: Test, allowed: string];
type Test = (value: unknown) => boolean;

function rulesOf({ runs }: PageData): Record<keyof State, Rule> {
  const names = runs.map(({ name }) => name);
  const isText: Test = (value) => typeof value === "string";
  const isPosition: Test = (value) => Number.isInteger(value) && Number(value) >= 0;
  const isOverride: Test = (value) => value === "uniform" || isPosition(value);
  const isList: Test = (value) => Array.isArray(value) && value.every(isPosition);
  const isCell: Test = (value) => value === null || (isList(value) && Object(value).length === 2);
  const isByPosition = (value: unknown, test: Test) =>
    typeof value === "object" &&
    Object.entries(value ?? { none: null }).every(([t, item]) => isPosition(Number(t)) && test(item));
  const text: Rule = [isText, "text"];
  const position: Rule = [(value) => value === null || isPosition(value), "a position from 0"];
  return {
    text,
    find: text,
    run: oneOf(names),
    compare: oneOf([...names, null]),
    checkpoint: oneOf([...checkpointSteps(runs), null]),
    beamSize: oneOf([...BEAM_SIZES, null]),
    view: oneOf(["heatmap", "arcs"]),
    side: oneOf(["decoder", "encoder"]),
    hypothesis: [isPosition, "a position from 0"],
    numShown: position,
    layer: position,
    head: position,
    hidden: [isList, "a list of positions"],
    cell: [isCell, "a target and a source position"],
    forced: [(value) => isByPosition(value, isText), "tokens by position"],
    overrides: [(value) => isByPosition(value, isOverride), 'positions or "uniform" by position'],
  };
}

function oneOf(values: unknown[]): Rule {
  const names = values.filter((value) => value !== null);
  return [(value) => values.includes(value), `one of ${names.join(", ")}`];
}

/** Returns the training steps of all checkpoints, in ascending order. */
export function checkpointSteps(runs: Run[]): number[] {
  const steps = runs.flatMap(({ checkpoints }) => checkpoints?.map(({ step }) => step) ?? []);
  return [...new Set(steps)].sort((a, b) => a - b);
}

/** Returns the runs that a state shows: one, or two different ones. */
export function shownRuns({ runs }: PageData, { run, compare }: State): Run[] {
  const names = new Set([run, compare]);
  return [...names].flatMap((name) => runs.find((item) => item.name === name) ?? []);
}
