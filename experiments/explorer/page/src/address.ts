// The state of the page. The part of the address after "#" holds it, so that Back in the browser undoes a change.

import { useEffect, useState } from "preact/hooks";
import type { Cell, PageData, Run, Side } from "./data";
import type { TranslationOptions } from "./translation";

export interface State extends TranslationOptions {
  /** Names of the run, and of a second run on the same text. */
  run: string;
  compare: string | null;
  /** Training step; null for the checkpoint that the run translates with. */
  checkpoint: number | null;
  view: "heatmap" | "arcs";
  /** Number of target tokens that are shown; null for all. */
  numShown: number | null;
  /** The selected target and source position. */
  cell: Cell | null;
  /** Of a recorded run. Null for the mean of all layers or heads. */
  side: Side;
  layer: number | null;
  head: number | null;
  /** Tokens that contain this text are marked. */
  find: string;
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
      const rule = Object.hasOwn(rules, name) ? rules[name] : null;
      if (rule?.test(value)) Object.assign(state, { [name]: value });
      else problems.push(`${name} must be ${rule?.allowed ?? "absent"}, got ${JSON.stringify(value)}`);
    }
  } catch {
    problems.push("it is not JSON");
  }
  return { state, problems };
}

/** Whether a value is valid, and what is allowed, in words. */
interface Rule {
  test: (value: unknown) => boolean;
  allowed: string;
}

function rulesOf({ runs }: PageData): Record<keyof State, Rule> {
  const names = runs.map(({ name }) => name);
  const isText = (value: unknown) => typeof value === "string";
  const isPosition = (value: unknown) => Number.isInteger(value) && Number(value) >= 0;
  const isOverride = (value: unknown) => value === "uniform" || isPosition(value);
  const isList = (value: unknown) => Array.isArray(value) && value.every(isPosition);
  const isByPosition = (value: unknown, test: Rule["test"]) =>
    Object.entries(value ?? [null]).every(([position, item]) => isPosition(Number(position)) && test(item));
  const isCell = (value: unknown) =>
    value === null || (isList(value) && Object.keys(value as object).length === 2);
  const text = { test: isText, allowed: "text" };
  const position = { test: isPosition, allowed: "a position from 0" };
  const optional = {
    test: (value: unknown) => value === null || isPosition(value),
    allowed: "a position from 0",
  };
  return {
    text,
    find: text,
    run: oneOf(names),
    compare: oneOf([...names, null]),
    checkpoint: oneOf([...checkpointSteps(runs), null]),
    beamSize: oneOf([...BEAM_SIZES, null]),
    view: oneOf(["heatmap", "arcs"]),
    side: oneOf(["decoder", "encoder"]),
    hypothesis: position,
    numShown: optional,
    layer: optional,
    head: optional,
    hidden: { test: isList, allowed: "a list of positions" },
    cell: { test: isCell, allowed: "a target and a source position" },
    forced: { test: (value) => isByPosition(value, isText), allowed: "tokens by position" },
    overrides: {
      test: (value) => isByPosition(value, isOverride),
      allowed: 'positions or "uniform" by position',
    },
  };
}

function oneOf(values: unknown[]): Rule {
  return {
    test: (value) => values.includes(value),
    allowed: `one of ${values.flatMap((value) => value ?? []).join(", ")}`,
  };
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
