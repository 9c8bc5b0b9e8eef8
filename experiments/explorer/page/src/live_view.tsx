// The translation of a run that the page runs.

import { AttentionFigure } from "./attention_figure";
import type { Cell, Example, LiveRun } from "./data";
import { formatCount, formatNumber, formatPercent } from "./format";
import type { Grid } from "./grid";
import { argmax } from "./linalg";
import { alignmentErrorRate } from "./metrics";
import type { State } from "./state";
import { EOS, toIds, tokenize } from "./tokenizer";
import type { Translation } from "./translation";
import type { Change } from "./use_address";

/** A translation, its first steps that are shown, and the selected cell if it is one of them. */
export interface ShownTranslation {
  whole: Translation;
  translation: Translation;
  cell: Cell | null;
}

interface LiveArticleProps {
  id: string;
  run: LiveRun;
  /** Training step of the checkpoint. */
  step: number;
  state: State;
  /** Null for a text without tokens; undefined before the first answer. */
  shown: ShownTranslation | null | undefined;
  error: string | null;
  isBusy: boolean;
  change: Change;
}

/** Shows a run and its translation of the text. */
export function LiveArticle(props: LiveArticleProps) {
  const { run, step, shown, error, isBusy } = props;
  const summary = `${run.summary}, step ${step.toLocaleString("en")}`;
  return (
    <article aria-busy={isBusy}>
      <h2 title={summary}>
        {run.name} <small>{summary}</small>
      </h2>
      {error && <p role="alert">The translation failed: {error}.</p>}
      {!error && shown === null && <p>Nothing to translate: enter a sentence, or choose an example.</p>}
      {shown && <TranslationView {...props} shown={shown} />}
    </article>
  );
}

function TranslationView({ id, run, state, shown, change }: LiveArticleProps & { shown: ShownTranslation }) {
  const { whole, translation, cell } = shown;
  const example = run.examples.find(({ source }) => source === translation.options.text.trim());
  const isMatched = example?.target ? matches(run, translation, example.target) : false;
  const links = isMatched && example?.links ? example.links.filter(([t]) => t < translation.rows.length) : [];
  const missing = missingFrom(state, whole);
  const { hidden, forced } = translation.options;
  const grid: Grid = {
    weights: translation.weights ?? [],
    rows: whole.rows,
    numShown: translation.rows.length,
    columns: translation.columns,
    rowName: "translation",
    columnName: "source",
    links,
    cell,
    find: "",
    actions: {
      hidden,
      forced: Object.keys(forced).map(Number),
      hide: (s) =>
        change({ hidden: hidden.includes(s) ? hidden.filter((item) => item !== s) : [...hidden, s] }),
      open: (t) => change({ cell: cell?.[0] === t ? null : strongestCell(translation, t) }),
    },
  };
  return (
    <>
      <div class="notes">
        <p class="text" aria-live="polite">
          {translation.text}
          {!translation.isComplete && " …"}
        </p>
        {missing.length > 0 && <p class="warning">Does not exist here: {missing.join(", ")}.</p>}
        <p class="facts">{describeTranslation(run, translation)}</p>
        <p class="reference">
          <Reference {...{ run, translation, example, isMatched, links, change }} />
        </p>
      </div>
      {!translation.weights && translation.rows.length > 0 && <p>This model has no attention.</p>}
      <AttentionFigure
        {...{ id, grid }}
        view={state.view}
        fallback={state.numShown ? { t: translation.rows.length - 1 } : null}
        onSelect={(selected) => change({ cell: selected })}
      />
      {whole.hypotheses.length > 1 && <Hypotheses {...{ whole, change }} />}
    </>
  );
}

/** Returns the cell of a step and the source token with the largest weight. */
export function strongestCell({ weights }: Translation, t: number): Cell {
  return [t, weights ? argmax(weights[t]) : 0];
}

interface ReferenceProps {
  run: LiveRun;
  translation: Translation;
  example?: Example;
  isMatched: boolean;
  links: Cell[];
  change: Change;
}

function Reference({ run, translation, example, isMatched, links, change }: ReferenceProps) {
  if (!example?.target) return <>No reference translation is available for this sentence.</>;
  if (!isMatched) {
    const tokens = [...tokenize(run.target, example.target), EOS];
    const force = () => change({ forced: Object.fromEntries(tokens.entries()), beamSize: 1, cell: null });
    return (
      <>
        Reference translation: {example.target}{" "}
        <button type="button" onClick={force}>
          force this translation
        </button>
      </>
    );
  }
  const { isComplete, weights } = translation;
  const rate =
    weights && links.length ? alignmentErrorRate(isComplete ? weights.slice(0, -1) : weights, links) : null;
  return (
    <>
      {isComplete ? "Matches" : "Starts like"} the reference translation.
      {rate !== null && (
        <span title="0: the strongest weights are the true alignment. 1: none of them is.">
          {" "}
          Alignment error {rate.toFixed(2)}.
        </span>
      )}
    </>
  );
}

/** Returns whether the tokens of a translation are those of a text, or the first ones of them. */
function matches(run: LiveRun, { tokens, isComplete, isTruncated }: Translation, text: string): boolean {
  const expected = toIds(run.target, tokenize(run.target, text));
  const ids = toIds(run.target, tokens);
  return !isTruncated && String(isComplete ? expected : expected.slice(0, ids.length)) === String(ids);
}

/** Lists the translations of a beam search. */
function Hypotheses({ whole, change }: { whole: Translation; change: Change }) {
  const { hypotheses, options } = whole;
  const numFinished = hypotheses.filter(({ isTruncated }) => !isTruncated).length;
  return (
    <details class="hypotheses" open>
      <summary>{formatCount(numFinished, "finished translation")} of the beam search, best first</summary>
      <ol>
        {hypotheses.map(({ tokens, score, isTruncated }, i) => (
          <li key={i}>
            <button
              type="button"
              aria-pressed={i === options.hypothesis}
              onClick={() => change({ hypothesis: i, cell: null })}
            >
              {tokens.join(" ")}
              {isTruncated && " …"} <span class="number">{formatNumber(score, 3)}</span>
            </button>
          </li>
        ))}
      </ol>
    </details>
  );
}

/** Returns the log-probability of a translation, and what is unusual about it. */
function describeTranslation(run: LiveRun, translation: Translation): string {
  const { isComplete, steps, rows, columns, score, beamSize, unknownTokens, numDropped } = translation;
  const logProbability = steps.reduce((sum, step) => sum + step.logProbability, 0);
  const scope = isComplete ? "" : ` of the first ${formatCount(rows.length, "step")}`;
  const percent = formatPercent(Math.exp(logProbability));
  const facts = [`Log-probability${scope} ${formatNumber(logProbability, 3)} (${percent})`];
  if (beamSize > 1 && isComplete) facts.push(`beam score ${formatNumber(score, 3)}`);
  if (translation.isTruncated) facts.push(`truncated to ${formatCount(run.max_length, "token")}`);
  if (unknownTokens.length) facts.push(`unknown: ${unknownTokens.join(" ")}`);
  if (numDropped) facts.push(`the last ${formatCount(numDropped, "token")} of the source are ignored`);
  if (run.max_train_length && columns.length - 1 > run.max_train_length) {
    facts.push(`longer than all training sentences (at most ${formatCount(run.max_train_length, "token")})`);
  }
  return [...facts, ...describeChanges(translation)].join(" · ");
}

function describeChanges({ columns, options: { hidden, forced, overrides } }: Translation): string[] {
  const numHidden = hidden.filter((s) => s < columns.length).length;
  const [numForced, numRows] = [Object.keys(forced).length, Object.keys(overrides).length];
  const changes = [];
  if (numHidden === columns.length) changes.push("all source tokens are hidden, so all weights are 0");
  else if (numHidden)
    changes.push(`${formatCount(numHidden, "source token")} hidden, but read by the encoder`);
  if (numForced) changes.push(`${formatCount(numForced, "token")} forced`);
  if (numRows) changes.push(`weights of ${formatCount(numRows, "step")} changed`);
  return changes;
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
