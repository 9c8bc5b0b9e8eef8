// The page: its controls, one or two runs, and the computation of the selected step.

import { useEffect, useState } from "preact/hooks";
import { Controls } from "./controls";
import type { LiveRun, PageData } from "./data";
import { LiveArticle, type ShownTranslation } from "./live_view";
import { RecordedArticle } from "./recorded_view";
import { type State, shownRuns } from "./state";
import { StepPanel } from "./step_panel";
import { firstSteps, type Translation } from "./translation";
import { type Change, useAddress } from "./use_address";
import { usePlayer } from "./use_player";
import { useTranslation } from "./worker";

/** Shows the page of some runs. The worker translates. */
export function App({ data, worker }: { data: PageData; worker: Worker }) {
  const { state, change: changeState, problems } = useAddress(data);
  const runs = shownRuns(data, state);
  const answers = [0, 1].map((article) => useTranslation(worker, requestOf(data, state, article)));
  const shown = answers.map(({ answer }, i) => {
    const run = runs[i];
    if (!answer || !run?.checkpoints) return undefined;
    return answer.translation && shownSteps(run, answer.translation, state);
  });
  const player = usePlayer(
    state,
    shown.find((item) => item),
    changeState,
  );
  const change: Change = (changes, options) => {
    player.stop();
    changeState(changes, options);
  };
  const scheme = useColorScheme();
  const hasLiveRun = runs.some((run) => run.checkpoints);
  return (
    <>
      <main
        onKeyDown={({ key }) => {
          if (key === "Escape" && state.cell) change({ cell: null });
        }}
      >
        <Problems key={String(problems)} problems={problems} />
        <Controls {...{ data, state, change, player }} />
        <div key={scheme} class="results">
          <div class="articles">
            {runs.map((run, i) => {
              const id = `run${i}`;
              if (!run.checkpoints) return <RecordedArticle key={id} {...{ id, run, state, change }} />;
              const { answer, isBusy } = answers[i];
              const step = run.checkpoints[checkpointOf(run, state)].step;
              const error = answer?.error ?? null;
              return (
                <LiveArticle key={id} shown={shown[i]} {...{ id, run, step, state, error, isBusy, change }} />
              );
            })}
          </div>
          {hasLiveRun && (
            <aside class="panels">
              {runs.map((run, i) => {
                if (!run.checkpoints) return null;
                const [translation, cell] = [shown[i]?.translation ?? null, shown[i]?.cell ?? null];
                const isCompared = runs.length > 1;
                return <StepPanel key={run.name} {...{ run, translation, cell, isCompared, change }} />;
              })}
            </aside>
          )}
        </div>
      </main>
    </>
  );
}

/** Returns "dark" or "light". Canvases are painted again when it changes. */
function useColorScheme(): "dark" | "light" {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const [isDark, setIsDark] = useState(query.matches);
  useEffect(() => query.addEventListener("change", () => setIsDark(query.matches)), []);
  return isDark ? "dark" : "light";
}

function Problems({ problems }: { problems: string[] }) {
  const [isClosed, setIsClosed] = useState(false);
  if (isClosed || !problems.length) return null;
  return (
    <p class="problems" role="alert">
      <span>This address has values that cannot be shown: {problems.join("; ")}.</span>
      <button type="button" onClick={() => setIsClosed(true)}>
        Close
      </button>
    </p>
  );
}

/** Returns the request for the translation of the first or the second run; null if there is none to translate. */
function requestOf(data: PageData, state: State, article: number) {
  const run = shownRuns(data, state)[article];
  if (!run?.checkpoints) return null;
  const { text, beamSize, hypothesis, hidden, forced, overrides } = state;
  return {
    article,
    run: data.runs.indexOf(run),
    checkpoint: checkpointOf(run, state),
    options: { text, beamSize, hypothesis, hidden, forced, overrides },
  };
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
