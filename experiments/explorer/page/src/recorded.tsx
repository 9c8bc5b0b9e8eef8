// The recorded attention of a run, by layer and head.

import { useEffect, useMemo, useState } from "preact/hooks";
import type { PageProps, State } from "./address";
import { decodeWeights } from "./arrays";
import type { PackedWeights, RecordedRun, Sentence, Side } from "./data";
import { AttentionFigure } from "./figure";
import { ellipsize } from "./format";
import { alignmentErrorRate, findTokens } from "./grid";
import type { Vector } from "./linalg";
import { Overview } from "./overview";

/** A layer or a head; null for the mean of all. */
export type Index = number | null;

/** Weights [layers, heads, targets, sources]. */
export interface RecordedWeights {
  shape: PackedWeights["shape"];
  values: Float32Array;
}

type RecordedProps = PageProps & { id: string; run: RecordedRun };

/** Shows the recorded attention of the sentence of the state, or of the first sentence. */
export function RecordedView(props: RecordedProps) {
  const { run, state } = props;
  const sentence = sentenceOf(run, state);
  const side = sideOf(sentence, state);
  const packed = side && sentence.sides[side];
  const decoded = useWeights(packed ?? null);
  const missing = missingFrom(run, packed?.shape ?? [0, 0, 0, 0], state);
  return (
    <>
      {run.why && <p class="hint">Recorded, because the page cannot run this model: {run.why}.</p>}
      {missing.length > 0 && <p class="warning">Does not exist here: {missing.join(", ")}.</p>}
      {sentence.target_text && <Texts sentence={sentence} />}
      {!packed && <p>This model has no attention.</p>}
      {decoded?.error && <p role="alert">The weights cannot be shown: {decoded.error}.</p>}
      {side && decoded?.weights && <Weights {...props} {...{ sentence, side, weights: decoded.weights }} />}
    </>
  );
}

/** Returns weights once they are decoded, or the error. */
function useWeights(packed: PackedWeights | null) {
  type Decoded = { packed: PackedWeights; weights?: RecordedWeights; error?: string };
  const [decoded, setDecoded] = useState<Decoded>();
  useEffect(() => {
    if (!packed) return;
    decodeWeights(packed).then(
      (values) => setDecoded({ packed, weights: { shape: packed.shape, values } }),
      (error) => setDecoded({ packed, error: error.message }),
    );
  }, [packed]);
  return decoded?.packed === packed ? decoded : null;
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

/** Returns the layer or head that a state selects. */
export function indexOf(selected: Index, count: number): Index {
  if (count === 1) return 0;
  return selected !== null && selected < count ? selected : null;
}

function missingFrom({ sentences }: RecordedRun, shape: PackedWeights["shape"], state: State): string[] {
  const { text, layer, head, cell } = state;
  const isRecorded = sentences.some(({ source_text }) => source_text.trim() === text.trim());
  const names = ["layer", "head", "target token", "source token"];
  const positions = [layer ?? -1, head ?? -1, cell?.[0] ?? -1, cell?.[1] ?? -1];
  const missing = names.flatMap((name, i) => (positions[i] >= shape[i] ? `${name} ${positions[i] + 1}` : []));
  return isRecorded ? missing : [`a recording of “${ellipsize(text)}”`, ...missing];
}

function Texts({ sentence: { source_text, target_text, reference, is_output } }: { sentence: Sentence }) {
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
          <dd>{ellipsize(text, 300)}</dd>
        </div>
      ))}
    </dl>
  );
}

type WeightsProps = RecordedProps & { sentence: Sentence; side: Side; weights: RecordedWeights };

function Weights({ id, run, data, state, change, sentence, side, weights: recorded }: WeightsProps) {
  const [L, N, T, S] = recorded.shape;
  const [layer, head] = [indexOf(state.layer, L), indexOf(state.head, N)];
  const weights = useMemo(() => meanWeights(recorded, layer, head), [recorded, layer, head]);
  const isSelf = side === "encoder";
  const { columns, is_output } = sentence;
  const links = (!isSelf && sentence.links) || [];
  const grid = {
    weights,
    links,
    rows: isSelf ? columns : sentence.rows,
    columns,
    rowName: isSelf ? "tokens" : is_output ? "translation" : "target",
    columnName: isSelf ? "tokens" : "source",
    numShown: T,
    cell: state.cell && state.cell[0] < T && state.cell[1] < S ? state.cell : null,
    find: state.find,
  };
  const numFound = findTokens(grid.rows, state.find).length + findTokens(columns, state.find).length;
  const rate = links.length ? alignmentErrorRate(weights.slice(0, -1), links) : null;
  const numHeads = (layer === null ? L : 1) * (head === null ? N : 1);
  const facts = [
    isSelf ? (run.why ? "Self-attention of the encoder" : "Self-attention") : "Attention to the source",
    ...(numHeads > 1 ? [`mean of ${numHeads} heads`] : []),
    ...(rate === null ? [] : [`alignment error ${rate.toFixed(2)}`]),
    ...(state.find.trim() ? [`${numFound} found`] : []),
  ];
  return (
    <>
      <p class="hint">{facts.join(" · ")}</p>
      <div class="recorded">
        {L * N > 1 && <Overview weights={recorded} {...{ layer, head, data, state, change }} />}
        <AttentionFigure {...{ id, grid }} view={state.view} onSelect={(cell) => change({ cell })} />
      </div>
    </>
  );
}

/** Returns the weights of a layer and a head. */
function meanWeights({ shape: [L, N, T, S], values }: RecordedWeights, layer: Index, head: Index): Vector[] {
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
