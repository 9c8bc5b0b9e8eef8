// All layers and heads as small pictures: a row for each layer, a column for each head.

import { useLayoutEffect, useRef } from "preact/hooks";
import type { PageProps } from "./address";
import { weightImage } from "./paint";
import type { RecordedWeights } from "./recorded";

const MAX_PIXELS = 48; // along a side of a picture

type OverviewProps = PageProps & { weights: RecordedWeights; layer: number | null; head: number | null };

/** Shows a picture of each head, which selects it. */
export function Overview({ weights, layer, head, change }: OverviewProps) {
  const [L, N] = weights.shape;
  const largest = weights.values.reduce((most, weight) => Math.max(most, Math.abs(weight)), 0);
  const select = (l: number, n: number) => {
    const isSelected = l === layer && n === head;
    change(isSelected ? { layer: null, head: null } : { layer: l, head: n });
  };
  return (
    <details class="overview" open>
      <summary>Layers (rows) and heads (columns)</summary>
      <table>
        <tr>
          <td />
          {Array.from({ length: N }, (_, n) => (
            <th key={n}>{n + 1}</th>
          ))}
        </tr>
        {Array.from({ length: L }, (_, l) => (
          <tr key={l}>
            <th>{l + 1}</th>
            {Array.from({ length: N }, (_, n) => (
              <td key={n}>
                <button
                  type="button"
                  aria-label={`layer ${l + 1}, head ${n + 1}`}
                  title={`layer ${l + 1}, head ${n + 1}`}
                  aria-pressed={l === layer && n === head}
                  onClick={() => select(l, n)}
                >
                  <Picture {...{ weights, largest }} layer={l} head={n} />
                </button>
              </td>
            ))}
          </tr>
        ))}
      </table>
    </details>
  );
}

type PictureProps = { weights: RecordedWeights; largest: number; layer: number; head: number };

function Picture({ weights, largest, layer, head }: PictureProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    if (!canvas.current) return;
    const image = weightImage(strongestWeights(weights, layer, head), largest, canvas.current);
    [canvas.current.width, canvas.current.height] = [image.width, image.height];
    canvas.current.getContext("2d")?.drawImage(image, 0, 0);
  }, [weights, largest, layer, head]);
  return <canvas ref={canvas} />;
}

/** Returns the weights of a head in at most 48 rows and columns, each the strongest of those it stands for. */
export function strongestWeights(
  { shape, values }: RecordedWeights,
  layer: number,
  head: number,
): Float32Array[] {
  const [, N, T, S] = shape;
  const [height, width] = [Math.min(T, MAX_PIXELS), Math.min(S, MAX_PIXELS)];
  const strongest = Array.from({ length: height }, () => new Float32Array(width));
  const offset = (layer * N + head) * T * S;
  for (let t = 0; t < T; t++) {
    const row = strongest[Math.floor((t * height) / T)];
    for (let s = 0; s < S; s++) {
      const column = Math.floor((s * width) / S);
      const weight = values[offset + t * S + s];
      if (Math.abs(weight) > Math.abs(row[column])) row[column] = weight;
    }
  }
  return strongest;
}
