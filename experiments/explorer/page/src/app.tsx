// The page: its controls, one or two runs, and the computation of the selected step.

import { useEffect, useState } from "preact/hooks";
import { type Change, type State, shownRuns, useAddress } from "./address";
import { Controls } from "./controls";
import type { LiveRun, PageData } from "./data";
import { Button } from "./inputs";
import { LiveView, type ShownTranslation } from "./live";
import { usePlayer } from "./player";
import { RecordedView } from "./recorded";
import { StepPanel } from "./step_panel";
import { firstSteps, type Translation } from "./translation";
import { useTranslation } from "./worker";

/** Shows the page of some runs. The worker translates. */
export function App({ data, worker }: { data: PageData; worker: Worker }) {
  const { state, change: changeState, problems } = useAddress(data);
  const runs = shownRuns(data, state);
  const answers = [0, 1].map((article) => useTranslation(worker, requestOf(data, state, article)));
  const shown = answers.map(({ answer }, i) => {
    const [run, translation] = [runs[i], answer?.translation];
    return run?.checkpoints && translation ? shownSteps(run, translation, state) : null;
  });
  const player = usePlayer(state, shown[0] ?? shown[1], changeState);
  const change: Change = (...changes) => {
    player.stop();
    changeState(...changes);
  };
  const page = { data, state, change };
  const onKeyDown = ({ key }: KeyboardEvent) => key === "Escape" && state.cell && change({ cell: null });
  return (
    <main onKeyDown={onKeyDown}>
      <Problems key={String(problems)} problems={problems} />
      <Controls {...page} {...{ runs, player }} />
      <div key={useColorScheme()} class="results">
        <div class="articles">
          {runs.map((run, i) => {
            const { answer, isBusy } = answers[i];
            const id = `run${i}`;
            const step = run.checkpoints?.[checkpointOf(run, state)].step.toLocaleString("en");
            return (
              <article key={id} aria-busy={isBusy}>
                <h2 title={run.summary}>
                  {run.name} <small>{step ? `${run.summary}, step ${step}` : run.summary}</small>
                </h2>
                {answer?.error && <p role="alert">The translation failed: {answer.error}.</p>}
                {answer && !answer.error && !answer.translation && (
                  <p>Nothing to translate: enter a sentence, or choose an example.</p>
                )}
                {run.sentences && <RecordedView {...page} {...{ id, run }} />}
                {run.checkpoints && shown[i] && <LiveView {...page} {...{ id, run }} shown={shown[i]} />}
              </article>
            );
          })}
        </div>
        {runs.some((run) => run.checkpoints) && (
          <aside class="panels">
            {runs.map((run, i) => {
              if (!run.checkpoints) return null;
              const [translation, cell] = [shown[i]?.translation ?? null, shown[i]?.cell ?? null];
              return <StepPanel key={run.name} {...page} {...{ run, translation, cell }} />;
            })}
          </aside>
        )}
      </div>
    </main>
  );
}

/** The problems of the address, until they are closed. */
function Problems({ problems }: { problems: string[] }) {
  const [isClosed, setIsClosed] = useState(false);
  if (isClosed || !problems.length) return null;
  return (
    <p class="problems" role="alert">
      The address is not valid: {problems.join("; ")}.
      <Button label="Close" press={() => setIsClosed(true)} />
    </p>
  );
}

/** Returns "dark" or "light". Canvases are painted again when it changes. */
function useColorScheme(): "dark" | "light" {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const [isDark, setIsDark] = useState(query.matches);
  useEffect(() => query.addEventListener("change", () => setIsDark(query.matches)), []);
  return isDark ? "dark" : "light";
}

/** Returns the request for the translation of the first or the second run; null if there is none to translate. */
function requestOf(data: PageData, state: State, article: number) {
  const run = shownRuns(data, state)[article];
  if (!run?.checkpoints) return null;
  const { text, beamSize, hypothesis, hidden, forced, overrides } = state;
  const options = { text, beamSize, hypothesis, hidden, forced, overrides };
  return { article, run: data.runs.indexOf(run), checkpoint: checkpointOf(run, state), options };
}

/** Returns the index of the last checkpoint up to the selected training step, or else of the first one. */
function checkpointOf({ checkpoints, step }: LiveRun, state: State): number {
  const selected = state.checkpoint ?? step;
  return Math.max(checkpoints.filter((item) => item.step <= selected).length - 1, 0);
}

function shownSteps(run: LiveRun, whole: Translation, { numShown, cell }: State): ShownTranslation {
  const translation = firstSteps(run, whole, numShown ?? Infinity);
  const exists = cell && cell[0] < translation.rows.length && cell[1] < translation.columns.length;
  return { whole, translation, cell: exists ? cell : null };
}
