// The computation of a step: its formulas and numbers, and what the user can change.

import { type Change, type PageProps, shownRuns } from "./address";
import type { Override } from "./attention";
import type { Cell, LiveRun } from "./data";
import { ellipsize, formatExact, formatNumber, formatPercent } from "./format";
import { formulasOf, NEXT_TOKEN, type StageName } from "./formulas";
import { Button } from "./inputs";
import { norm, type Vector } from "./linalg";
import { displayToken } from "./tokenizer";
import type { Translation } from "./translation";

const PAPER = "https://arxiv.org/abs/1409.0473";
const NUM_VALUES = 3; // of a vector

/** The translation is null for a text without tokens. Without a cell, there are no numbers. */
type StepPanelProps = PageProps & { run: LiveRun; translation: Translation | null; cell: Cell | null };

/** Shows how a step is computed. */
export function StepPanel({ run, translation, cell, data, state, change }: StepPanelProps) {
  const runName = shownRuns(data, state).length > 1 ? `${run.name}: ` : "";
  if (!translation || !cell) {
    return (
      <section class="panel" aria-label="how a step is computed">
        <h3>{runName}How a step is computed</h3>
        <p class="hint">Select a token of the translation, or a weight, to see the numbers of its step.</p>
        <Stages run={run} />
      </section>
    );
  }
  const [t, s] = cell;
  const [target, source, weight] = [translation.rows[t], translation.columns[s], translation.weights?.[t][s]];
  return (
    <section class="panel step" aria-label="how this step is computed">
      <div class="heading">
        <h3>{`${runName}Step ${t + 1}: “${target}”`}</h3>
        <Button label="×" title="Close" press={() => change({ cell: null })} />
      </div>
      {weight !== undefined && (
        <p class="hint">{`from “${target}” to “${source}”: ${formatExact(weight)}`}</p>
      )}
      {weight !== undefined && <WeightChoices {...{ translation, cell, change }} />}
      <TokenChoices {...{ translation, t, change }} />
      <Stages run={run} numbers={numbersOf(translation, t, s)} note={noteOf(translation, t, s)} />
    </section>
  );
}

type Numbers = Partial<Record<StageName, Vector | number>>;

/** Returns the values of a step. */
function numbersOf({ steps, keys }: Translation, t: number, s: number): Numbers {
  const { query, scores, weights, context, state, features } = steps[t];
  const values = { Context: context, State: state, Features: features };
  if (!query || !scores || !weights) return values;
  return { Query: query, Key: keys[s], Score: scores[s], Weight: weights[s], ...values };
}

/** Returns why a weight is not the softmax of the scores, or an empty text. */
function noteOf({ options }: Translation, t: number, s: number): string {
  const override = options.overrides[t];
  if (override === "uniform") return " (you set uniform weights)";
  if (override !== undefined) return " (you set weight 1 on one token)";
  return options.hidden.includes(s) ? " (you hid this token)" : "";
}

type ChoicesProps = { translation: Translation; change: Change };

/** The choices of the attention weights of a step. */
function WeightChoices({ translation, cell: [t, s], change }: ChoicesProps & { cell: Cell }) {
  const { [t]: current, ...others } = translation.options.overrides;
  const choices: [string, Override | undefined][] = [
    ["computed", undefined],
    ["uniform", "uniform"],
    [`all on “${ellipsize(translation.columns[s], 16)}”`, s],
  ];
  const set = (override?: Override) =>
    change({ overrides: override === undefined ? others : { ...others, [t]: override } });
  return (
    <fieldset class="choices" aria-label="attention weights">
      Weights
      {choices.map(([label, override]) => (
        <Button key={label} label={label} isPressed={current === override} press={() => set(override)} />
      ))}
    </fieldset>
  );
}

/** The most probable next tokens, as buttons that force a token. */
function TokenChoices({ translation, t, change }: ChoicesProps & { t: number }) {
  const { beamSize, steps, tokens, options } = translation;
  // Beam search also keeps the tokens before this one, because another hypothesis may be better with the new token.
  const earlier = Object.entries(beamSize > 1 ? tokens : options.forced).filter(([i]) => Number(i) < t);
  const kept = Object.fromEntries(earlier);
  const undo = () => change({ forced: beamSize > 1 ? {} : kept });
  return (
    <fieldset aria-label="next token">
      <p class="choices-label">
        <span>
          Next token, <MathML formula={NEXT_TOKEN} />; choose instead:
        </span>
        <Button label="Undo" className={t in options.forced ? "" : "later"} press={undo} />
      </p>
      <div class="candidates">
        {steps[t].candidates.map(({ token, probability }) => (
          <button
            key={token}
            type="button"
            aria-pressed={token === steps[t].token}
            title={displayToken(token)}
            style={{ "--probability": probability.toFixed(3) }}
            onClick={() => change({ forced: { ...kept, [t]: token }, hypothesis: 0 })}
          >
            <span>{ellipsize(displayToken(token), 20)}</span> <small>{formatPercent(probability)}</small>
          </button>
        ))}
      </div>
    </fieldset>
  );
}

function Stages({ run, numbers = {}, note }: { run: LiveRun; numbers?: Numbers; note?: string }) {
  return (
    <>
      <ol class="stages">
        {formulasOf(run.shape).map(({ name, formula, symbols }) => (
          <li key={name}>
            <b>{name}</b> <MathML formula={formula} />
            {symbols.map(([symbol, meaning], i) => (
              <small key={meaning}>
                {i === 0 && "with "}
                <MathML formula={symbol} />, {meaning}
                {i < symbols.length - 1 && "; "}
              </small>
            ))}
            <div class="number">
              {describeValue(numbers[name])}
              {name === "Weight" && note}
            </div>
          </li>
        ))}
      </ol>
      <p class="hint">
        Formulas: <a href={PAPER}>Bahdanau et al. 2015</a>, A.1.2 and A.2.2
      </p>
    </>
  );
}

function MathML({ formula }: { formula: string }) {
  return <math dangerouslySetInnerHTML={{ __html: formula }} />;
}

function describeValue(value?: Vector | number): string {
  if (value === undefined) return "";
  if (typeof value === "number") return formatNumber(value, 4);
  const values = Array.from(value.slice(0, NUM_VALUES), (number) => formatNumber(number)).join("  ");
  return `[${values}${value.length > NUM_VALUES ? "  …" : ""}] ${value.length} numbers, norm ${norm(value).toFixed(2)}`;
}
