// The state of the page, and the part of the address after "#" that holds it.

import type { Cell, PageData, Run, Side } from "./data";
import type { TranslationOptions } from "./translation";

export interface State extends TranslationOptions {
  /** Name of the run. */
  run: string;
  /** Name of a second run, on the same text. */
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

/** What an address must contain: a test of each field, and what it allows, in words. */
type Rules = Record<keyof State, { test: (value: unknown) => boolean; allowed: string }>;

const UNCHANGED = {
  hidden: [],
  forced: {},
  overrides: {},
  hypothesis: 0,
  numShown: null,
  cell: null,
} as const satisfies Partial<State>;
export const MAX_BEAM_SIZE = 10;

/** Returns the state of a page without an address: the first two runs and the first text. */
export function defaultState({ runs }: PageData): State {
  return {
    ...withText(runs[0].checkpoints ? (runs[0].examples[0]?.source ?? "") : runs[0].sentences[0].source_text),
    run: runs[0].name,
    compare: runs[1]?.name ?? null,
    checkpoint: null,
    beamSize: null,
    view: "heatmap",
    side: "decoder",
    layer: null,
    head: null,
    find: "",
  };
}

/** Returns the changes of a state to another text, which has no changed tokens. */
export function withText(text: string) {
  return { ...UNCHANGED, hidden: [], text };
}

/** Returns the changes of a state that restore the translation of the run. */
export function withReset({ text }: State) {
  return { ...withText(text), beamSize: null, checkpoint: null };
}

/** Returns the address of a state: its fields that are not the default, as JSON. */
export function toAddress(state: State, data: PageData): string {
  const initial = Object.entries(defaultState(data)).map(([name, value]) => [name, JSON.stringify(value)]);
  const unchanged = new Set(initial.map(String));
  const fields = Object.entries(state).filter(
    ([name, value]) => !unchanged.has(`${name},${JSON.stringify(value)}`),
  );
  return fields.length ? `#${encodeURIComponent(JSON.stringify(Object.fromEntries(fields)))}` : "#";
}

/** Returns the state of an address, and its problems. Fields with problems have their default. */
export function fromAddress(address: string, data: PageData): { state: State; problems: string[] } {
  const initial = defaultState(data);
  const fields = parse(address);
  if (!fields) return { state: initial, problems: ["it is not a JSON object"] };
  const rules = rulesOf(data);
  const state: Record<string, unknown> = { ...initial };
  const problems: string[] = [];
  for (const [name, value] of Object.entries(fields)) {
    if (!Object.hasOwn(rules, name)) problems.push(`there is no field ${name}`);
    else if (rules[name as keyof State].test(value)) state[name] = value;
    else problems.push(`${name} must be ${rules[name as keyof State].allowed}, got ${JSON.stringify(value)}`);
  }
  return { state: state as unknown as State, problems };
}

function parse(address: string): object | null {
  if (address.length < 2) return {};
  try {
    const fields = JSON.parse(decodeURIComponent(address.slice(1)));
    return typeof fields === "object" && !Array.isArray(fields) ? fields : null;
  } catch {
    return null;
  }
}

function rulesOf({ runs }: PageData): Rules {
  const names = runs.map(({ name }) => name);
  const text = { test: (value: unknown) => typeof value === "string", allowed: "text" };
  const position = { test: isPosition, allowed: "a position, from 0" };
  const optional = {
    test: (value: unknown) => value === null || isPosition(value),
    allowed: "a position, or null",
  };
  return {
    run: oneOf(names),
    compare: oneOf([...names, null]),
    checkpoint: oneOf([...checkpointSteps(runs), null]),
    text,
    beamSize: oneOf([...Array.from({ length: MAX_BEAM_SIZE }, (_, i) => i + 1), null]),
    hypothesis: position,
    hidden: {
      test: (value) => Array.isArray(value) && value.every(isPosition),
      allowed: "a list of positions",
    },
    forced: { test: (value) => isByPosition(value, text.test), allowed: "text by position" },
    overrides: {
      test: (value) => isByPosition(value, (override) => override === "uniform" || isPosition(override)),
      allowed: '"uniform" or a source position, by target position',
    },
    view: oneOf(["heatmap", "arcs"]),
    numShown: optional,
    cell: {
      test: (value) =>
        value === null || (Array.isArray(value) && value.length === 2 && value.every(isPosition)),
      allowed: "a target and a source position",
    },
    side: oneOf(["decoder", "encoder"]),
    layer: optional,
    head: optional,
    find: text,
  };
}

function isPosition(value: unknown): boolean {
  return Number.isInteger(value) && (value as number) >= 0;
}

function isByPosition(value: unknown, test: (item: unknown) => boolean): boolean {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  return Object.entries(value).every(([position, item]) => isPosition(Number(position)) && test(item));
}

function oneOf(values: unknown[]) {
  return {
    test: (value: unknown) => values.includes(value),
    allowed: `one of ${values.map((value) => JSON.stringify(value)).join(", ")}`,
  };
}

/** Returns the training steps of all checkpoints, in ascending order. */
export function checkpointSteps(runs: Run[]): number[] {
  const steps = runs.flatMap((run) => (run.checkpoints ?? []).map(({ step }) => step));
  return [...new Set(steps)].sort((a, b) => a - b);
}

/** Returns the runs that a state shows: one, or two different ones. */
export function shownRuns({ runs }: PageData, { run, compare }: State): Run[] {
  const names = compare === null || compare === run ? [run] : [run, compare];
  return names.flatMap((name) => runs.find((item) => item.name === name) ?? []);
}
