// The translation of a run that the page runs.

import type { PageProps, State } from "./address";
import { columnAxis } from "./axis";
import type { Cell, Example, LiveRun } from "./data";
import { AttentionFigure } from "./figure";
import { formatCount, formatNumber, formatPercent } from "./format";
import { alignmentErrorRate } from "./grid";
import { Button } from "./inputs";
import { Labels } from "./labels";
import { argmax } from "./linalg";
import { EOS, toIds, tokenize } from "./tokenizer";
import type { Translation } from "./translation";

const WIDE = { available: Infinity, minSize: 0, maxSize: Infinity, maxLabels: Infinity };

/** A translation, its first steps that are shown, and the selected cell if it is one of them. */
export type ShownTranslation = { whole: Translation; translation: Translation; cell: Cell | null };

type LiveProps = PageProps & { id: string; run: LiveRun; shown: ShownTranslation };

/** Shows the translation of the text. */
export function LiveView({ id, run, state, data, change, shown }: LiveProps) {
  const { whole, translation, cell } = shown;
  const { hidden, forced, text } = translation.options;
  const numShown = translation.rows.length;
  const example = run.examples.find(({ source }) => source === text.trim());
  const trueLinks = example && matches(run, translation, example) ? example.links : null;
  const links = trueLinks?.filter(([t]) => t < numShown) ?? [];
  const missing = missingFrom(state, whole);
  const hide = (s: number) => {
    // Not those of the translation, which may be that of an earlier state.
    const others = state.hidden.filter((i) => i !== s);
    change({ hidden: others.length < state.hidden.length ? others : [...others, s] });
  };
  const open = (t: number) => change({ cell: cell?.[0] === t ? null : strongestCell(translation, t) });
  const actions = { hidden, forced: Object.keys(forced).map(Number), hide, open };
  const [rows, columns, weights] = [whole.rows, whole.columns, translation.weights ?? []];
  const names = { rowName: "translation", columnName: "source", find: "" };
  const grid = { rows, columns, weights, links, cell, actions, numShown, ...names };
  return (
    <>
      <div class="notes">
        <p class="text" aria-live="polite">
          {translation.isComplete ? translation.text : `${translation.text} …`}
        </p>
        {missing.length > 0 && <p class="warning">Does not exist here: {missing.join(", ")}.</p>}
        <p class="hint">{describeTranslation(run, translation)}</p>
        <p class="hint">
          <Reference {...{ run, translation, example, links, data, state, change }} />
        </p>
      </div>
      {run.shape.attention === "none" ? (
        <div class="map">
          <Labels
            {...{ grid }}
            kind="rows"
            side="bottom"
            axis={columnAxis(rows, WIDE)}
            point={null}
            onPoint={() => {}}
          />
        </div>
      ) : (
        <AttentionFigure
          {...{ id, grid }}
          view={state.view}
          fallback={state.numShown ? { t: numShown - 1 } : null}
          onSelect={(selected) => change({ cell: selected })}
        />
      )}
      {whole.hypotheses.length > 1 && <Hypotheses {...{ whole, data, state, change }} />}
    </>
  );
}

/** Returns the cell of a step and the source token with the largest weight. */
export function strongestCell({ weights }: Translation, t: number): Cell {
  return [t, weights ? argmax(weights[t]) : 0];
}

type ReferenceProps = PageProps & {
  run: LiveRun;
  translation: Translation;
  example?: Example;
  links: Cell[];
};

function Reference({ run, translation, example, links, change }: ReferenceProps) {
  if (!example?.target) return <>No reference translation is available for this sentence.</>;
  if (!matches(run, translation, example)) {
    const tokens = [...tokenize(run.target, example.target), EOS];
    const force = () => change({ forced: Object.fromEntries(tokens.entries()), beamSize: 1, cell: null });
    return (
      <>
        Reference translation: {example.target} <Button label="force this translation" press={force} />
      </>
    );
  }
  const { isComplete, weights } = translation;
  const rate = weights && alignmentErrorRate(isComplete ? weights.slice(0, -1) : weights, links);
  return (
    <span title="Alignment error 0: the strongest weights are the true alignment. 1: none of them is.">
      {isComplete ? "Matches" : "Begins like"} the reference translation.
      {rate !== null && ` Alignment error ${rate.toFixed(2)}.`}
    </span>
  );
}

/** Returns whether a translation is the reference of an example, or begins like it. */
function matches({ target }: LiveRun, translation: Translation, example: Example): boolean {
  const { tokens, isComplete, isTruncated } = translation;
  const expected = toIds(target, tokenize(target, example.target));
  const ids = toIds(target, tokens);
  return !isTruncated && String(isComplete ? expected : expected.slice(0, ids.length)) === String(ids);
}

/** Lists the translations of a beam search. */
function Hypotheses({ whole, change }: PageProps & { whole: Translation }) {
  const numFinished = whole.hypotheses.filter(({ isTruncated }) => !isTruncated).length;
  return (
    <details class="hypotheses" open>
      <summary>{formatCount(numFinished, "finished translation")} of the beam search, best first</summary>
      <ol>
        {whole.hypotheses.map(({ tokens, score, isTruncated }, i) => (
          <li key={i}>
            <Button
              label={`${tokens.join(" ")}${isTruncated ? " …" : ""}  ${formatNumber(score, 3)}`}
              isPressed={i === whole.options.hypothesis}
              press={() => change({ hypothesis: i, cell: null })}
            />
          </li>
        ))}
      </ol>
    </details>
  );
}

/** Returns the log-probability of a translation, and what is unusual about it. */
function describeTranslation(run: LiveRun, translation: Translation): string {
  const { isComplete, steps, columns, score, beamSize, unknownTokens, numDropped, options } = translation;
  const { hidden, forced, overrides } = options;
  const [numForced, numOverrides] = [Object.keys(forced).length, Object.keys(overrides).length];
  const numHidden = hidden.filter((s) => s < columns.length).length;
  const logProbability = steps.reduce((sum, step) => sum + step.logProbability, 0);
  const scope = isComplete ? "" : ` of the first ${formatCount(steps.length, "step")}`;
  const percent = formatPercent(Math.exp(logProbability));
  const facts = [`Log-probability${scope} ${formatNumber(logProbability, 3)} (${percent})`];
  if (!translation.weights && steps.length) facts.push("the model has no attention");
  if (beamSize > 1 && isComplete) facts.push(`beam score ${formatNumber(score, 3)}`);
  if (translation.isTruncated) facts.push(`truncated to ${formatCount(run.max_length, "token")}`);
  if (unknownTokens.length) facts.push(`unknown: ${unknownTokens.join(" ")}`);
  if (numDropped) facts.push(`the last ${formatCount(numDropped, "token")} of the source are ignored`);
  if (run.max_train_length && columns.length - 1 > run.max_train_length) {
    facts.push(`longer than all training sentences (at most ${formatCount(run.max_train_length, "token")})`);
  }
  if (numHidden === columns.length) facts.push("all source tokens are hidden, so all weights are 0");
  else if (numHidden) facts.push(`${formatCount(numHidden, "source token")} hidden, but read by the encoder`);
  if (numForced) facts.push(`${formatCount(numForced, "token")} forced`);
  if (numOverrides) facts.push(`weights of ${formatCount(numOverrides, "step")} changed`);
  return facts.join(" · ");
}

/** Returns which positions of a state do not exist in its translation. */
function missingFrom(state: State, { columns, rows, hypotheses, options }: Translation): string[] {
  if (state.text !== options.text) return []; // the translation is that of an earlier state
  const { hidden, forced, overrides, cell, hypothesis } = state;
  const sources = [...hidden, ...Object.values(overrides).map(Number), cell?.[1] ?? 0];
  const targets = [...Object.keys(forced), ...Object.keys(overrides), cell?.[0] ?? 0].map(Number);
  const missing = (name: string, positions: number[], count: number) =>
    [...new Set(positions)].filter((i) => i >= count).map((i) => `${name} ${i + 1}`);
  return [
    ...missing("source token", sources, columns.length),
    ...missing("target token", targets, rows.length),
    ...missing("hypothesis", [hypothesis], hypotheses.length),
  ];
}
