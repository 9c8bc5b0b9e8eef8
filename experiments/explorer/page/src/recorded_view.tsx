// The recorded attention of a run, by layer and head.

import { useEffect, useMemo, useState } from "preact/hooks";
import { decodeWeights } from "./arrays";
import { AttentionFigure } from "./attention_figure";
import type { RecordedRun, Sentence, Side } from "./data";
import { ellipsize, formatCount } from "./format";
import { findTokens, type Grid } from "./grid";
import type { Vector } from "./linalg";
import { alignmentErrorRate } from "./metrics";
import { Overview } from "./overview";
import type { State } from "./state";
import type { Change } from "./use_address";

/** The weights of all layers and heads. */
export interface RecordedWeights {
  /** [layers, heads, targets, sources]. */
  shape: [number, number, number, number];
  values: Float32Array;
}

const MAX_TEXT_LENGTH = 300;

interface RecordedArticleProps {
  id: string;
  run: RecordedRun;
  state: State;
  change: Change;
}

/** Shows a run and the recorded attention of the sentence of the state, or of the first sentence. */
export function RecordedArticle({ id, run, state, change }: RecordedArticleProps) {
  const sentence = sentenceOf(run, state);
  const side = sideOf(sentence, state);
  const { weights, error } = useWeights(sentence, side);
  const missing = missingFrom(run, sentence, state);
  return (
    <article aria-busy={side !== null && !weights && !error}>
      <h2 title={run.summary}>
        {run.name} <small>{run.summary}</small>
      </h2>
      {run.why && <p class="hint">Recorded, because the page cannot run this model: {run.why}.</p>}
      {missing.length > 0 && <p class="warning">Does not exist here: {missing.join(", ")}.</p>}
      {sentence.target_text && <Texts sentence={sentence} />}
      {error && <p role="alert">The weights cannot be shown: {error}.</p>}
      {!side && <p>This model has no attention.</p>}
      {side && weights && <RecordedAttention {...{ id, run, state, change, sentence, side, weights }} />}
    </article>
  );
}

/** Returns the weights of a side, once they are decoded. */
function useWeights(sentence: Sentence, side: Side | null) {
  const [decoded, setDecoded] = useState<{ packed: unknown; weights?: RecordedWeights; error?: string }>();
  const packed = side && sentence.sides[side];
  useEffect(() => {
    if (!packed) return;
    decodeWeights(packed).then(
      (values) => setDecoded({ packed, weights: { shape: packed.shape, values } }),
      (error) => setDecoded({ packed, error: error.message }),
    );
  }, [packed]);
  return decoded?.packed === packed ? { weights: decoded?.weights, error: decoded?.error } : {};
}

/** Returns the recorded sentence with the text of a state, or the first sentence. */
export function sentenceOf({ sentences }: RecordedRun, { text }: State): Sentence {
  return sentences.find(({ source_text }) => source_text.trim() === text.trim()) ?? sentences[0];
}

/** Returns the side of a sentence that a state shows; null without attention. */
export function sideOf({ sides }: Sentence, { side }: State): Side | null {
  if (sides[side]) return side;
  return sides.decoder ? "decoder" : sides.encoder ? "encoder" : null;
}

/** Returns the layer or head that a state selects; null for the mean of several. */
export function indexOf(selected: number | null, count: number): number | null {
  if (count === 1) return 0;
  return selected !== null && selected < count ? selected : null;
}

function missingFrom(run: RecordedRun, sentence: Sentence, state: State): string[] {
  const side = sideOf(sentence, state);
  const [L, N, T, S] = (side && sentence.sides[side]?.shape) ?? [0, 0, 0, 0];
  const [t, s] = state.cell ?? [-1, -1];
  const missing: [string, number, number][] = [
    ["layer", state.layer ?? -1, L],
    ["head", state.head ?? -1, N],
    ["target token", t, T],
    ["source token", s, S],
  ];
  const isRecorded = run.sentences.some(({ source_text }) => source_text.trim() === state.text.trim());
  return [
    ...(isRecorded ? [] : [`a recording of “${ellipsize(state.text)}” (the first sentence is shown)`]),
    ...missing.filter(([, i, count]) => i >= count).map(([name, i]) => `${name} ${i + 1}`),
  ];
}

function Texts({ sentence }: { sentence: Sentence }) {
  const { source_text, target_text, reference, is_output } = sentence;
  const lines = [
    ["Source", source_text],
    [is_output ? "Translation by the model" : "Reference translation", target_text],
    ...(is_output && reference ? [["Reference translation", reference]] : []),
  ];
  return (
    <dl class="texts">
      {lines.map(([name, text]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{text.length > MAX_TEXT_LENGTH ? `${text.slice(0, MAX_TEXT_LENGTH)}…` : text}</dd>
        </div>
      ))}
    </dl>
  );
}

interface RecordedAttentionProps extends RecordedArticleProps {
  sentence: Sentence;
  side: Side;
  weights: RecordedWeights;
}

function RecordedAttention({ id, run, state, change, sentence, side, weights }: RecordedAttentionProps) {
  const [L, N, T, S] = weights.shape;
  const [layer, head] = [indexOf(state.layer, L), indexOf(state.head, N)];
  const mean = useMemo(() => meanWeights(weights, layer, head), [weights, layer, head]);
  const grid: Grid = {
    weights: mean,
    rows: side === "decoder" ? sentence.rows : sentence.columns,
    numShown: T,
    columns: sentence.columns,
    rowName: side === "encoder" ? "tokens" : sentence.is_output ? "translation" : "target",
    columnName: side === "encoder" ? "tokens" : "source",
    links: (side === "decoder" && sentence.links) || [],
    cell: state.cell && state.cell[0] < T && state.cell[1] < S ? state.cell : null,
    find: state.find,
  };
  return (
    <>
      <p>{describe(run, side, sentence, grid, layer === null || head === null ? L * N : 1)}</p>
      <p class="found-line">{describeFound(grid)}</p>
      {L * N > 1 && <Overview weights={weights} {...{ layer, head, change }} />}
      <AttentionFigure {...{ id, grid }} view={state.view} onSelect={(cell) => change({ cell })} />
    </>
  );
}

function describe(run: RecordedRun, side: Side, sentence: Sentence, grid: Grid, numHeads: number): string {
  const attention =
    side === "decoder"
      ? "Attention to the source"
      : run.why
        ? "Self-attention of the encoder"
        : "Self-attention";
  const mean = numHeads > 1 ? ", mean of several heads" : "";
  const hasError = grid.links.length > 0 && !sentence.is_output;
  const rate = hasError ? alignmentErrorRate(grid.weights.slice(0, -1), grid.links) : null;
  return `${attention}${mean}.${rate === null ? "" : ` Alignment error ${rate.toFixed(2)}.`}`;
}

function describeFound({ find, rows, columns }: Grid): string {
  if (!find.trim()) return "";
  const list = (found: number[]) => found.map((i) => i + 1).join(", ") || "none";
  const [inRows, inColumns] = [findTokens(rows, find), findTokens(columns, find)];
  const found = formatCount(inRows.length + inColumns.length, "match", "matches");
  return `${found} of “${find.trim()}”: rows ${list(inRows)}; columns ${list(inColumns)}.`;
}

/** Returns the weights of a layer and a head. Null selects the mean of all. */
function meanWeights(weights: RecordedWeights, layer: number | null, head: number | null): Vector[] {
  const { shape, values } = weights;
  const [L, N, T, S] = shape;
  const layers = layer === null ? [...Array(L).keys()] : [layer];
  const heads = head === null ? [...Array(N).keys()] : [head];
  const sums = new Float64Array(T * S);
  for (const l of layers) {
    for (const n of heads) {
      const offset = (l * N + n) * T * S;
      for (let i = 0; i < sums.length; i++) sums[i] += values[offset + i];
    }
  }
  const count = layers.length * heads.length;
  return Array.from({ length: T }, (_, t) => sums.subarray(t * S, (t + 1) * S).map((sum) => sum / count));
}
