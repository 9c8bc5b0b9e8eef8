// The controls above the results.

import type { LiveRun, PageData, RecordedRun, Side } from "./data";
import { ellipsize } from "./format";
import { indexOf, sentenceOf, sideOf } from "./recorded_view";
import {
  checkpointSteps,
  MAX_BEAM_SIZE,
  type State,
  shownRuns,
  toAddress,
  withReset,
  withText,
} from "./state";
import type { Change } from "./use_address";
import type { Player } from "./use_player";

interface ControlsProps {
  data: PageData;
  state: State;
  change: Change;
  player: Player;
}

/** Shows the controls of the runs that the state shows. */
export function Controls(props: ControlsProps) {
  const { data, state, change } = props;
  const runs = shownRuns(data, state);
  const live = runs.find((run) => run.checkpoints !== undefined);
  const recorded = runs.find((run) => run.sentences !== undefined);
  const names = data.runs.map(({ name }) => name);
  const selectRun = (run: string) =>
    change({ ...withText(state.text), run, compare: state.compare === run ? state.run : state.compare });
  return (
    <form onSubmit={(event) => event.preventDefault()}>
      {names.length > 1 && (
        <div class="line">
          <Choice
            name="Run"
            value={state.run}
            options={names.map((name) => [name, name])}
            select={selectRun}
          />
          <Choice
            name="Compare with"
            value={state.compare}
            options={[[null, "none"], ...names.filter((name) => name !== state.run).map(pair)]}
            select={(compare) => change({ compare })}
          />
        </div>
      )}
      {live && <SentenceControls {...{ live, state, change }} />}
      <div class="bar">
        {live && <PlayerControls {...props} />}
        <fieldset class="segments" aria-label="View">
          {(["heatmap", "arcs"] as const).map((view) => (
            <label key={view}>
              <input
                type="radio"
                name="view"
                checked={state.view === view}
                onChange={() => change({ view })}
              />
              {view === "arcs" ? "Arcs" : "Heatmap"}
            </label>
          ))}
        </fieldset>
        {live && <ModelControls {...props} live={live} />}
        {recorded && <RecordedControls {...{ recorded, state, change }} />}
      </div>
    </form>
  );
}

function pair(name: string): [string, string] {
  return [name, name];
}

type ChoiceProps<Value> = {
  name: string;
  value: Value;
  /** Values and their names. */
  options: [Value, string][];
  select: (value: Value) => void;
};

function Choice<Value>({ name, value, options, select }: ChoiceProps<Value>) {
  return (
    <label>
      {name}
      <select
        value={options.findIndex(([option]) => option === value)}
        onChange={({ currentTarget }) => select(options[currentTarget.selectedIndex][0])}
      >
        {options.map(([, text], i) => (
          <option key={text} value={i}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

function SentenceControls({ live, state, change }: { live: LiveRun; state: State; change: Change }) {
  const splits = [...new Set(live.examples.map(({ split }) => split))];
  return (
    <div class="line sentence">
      <label for="text">Sentence</label>
      <textarea
        id="text"
        rows={1}
        spellcheck={false}
        autocapitalize="off"
        value={state.text}
        onInput={({ currentTarget }) => change(withText(currentTarget.value))}
      />
      <select
        aria-label="Examples"
        onChange={({ currentTarget }) => {
          change(withText(currentTarget.value));
          currentTarget.value = "";
        }}
      >
        <option value="">Examples</option>
        {splits.map((split) => (
          <optgroup key={split} label={split}>
            {live.examples.map((example) => example.split === split && <option>{example.source}</option>)}
          </optgroup>
        ))}
      </select>
    </div>
  );
}

function PlayerControls({ state, player }: ControlsProps) {
  return (
    <fieldset class="group" aria-label="Token by token">
      <button type="button" onClick={player.previous}>
        Previous token
      </button>
      <button type="button" class="play" onClick={player.toggle}>
        {player.isPlaying ? "Pause" : "Play"}
      </button>
      <button type="button" onClick={player.next}>
        Next token
      </button>
      <button type="button" disabled={state.numShown === null} onClick={player.showAll}>
        All tokens
      </button>
    </fieldset>
  );
}

function ModelControls({ data, state, change, live }: ControlsProps & { live: LiveRun }) {
  const steps = checkpointSteps(data.runs);
  const step = state.checkpoint ?? live.step;
  const isReset = toAddress(state, data) === toAddress({ ...state, ...withReset(state) }, data);
  return (
    <>
      <Choice
        name="Beam size"
        value={state.beamSize ?? live.beam_size}
        options={Array.from({ length: MAX_BEAM_SIZE }, (_, i) => [i + 1, `${i + 1}`])}
        select={(beamSize) => change({ beamSize, hypothesis: 0, cell: null })}
      />
      {steps.length > 1 && (
        <label>
          Training step
          <input
            type="range"
            min={0}
            max={steps.length - 1}
            value={steps.indexOf(step)}
            aria-valuetext={`${step}`}
            onInput={({ currentTarget }) => change({ checkpoint: steps[Number(currentTarget.value)] })}
          />
          <output>{step.toLocaleString("en")}</output>
        </label>
      )}
      <button type="button" disabled={isReset} onClick={() => change(withReset(state))}>
        Reset
      </button>
    </>
  );
}

function RecordedControls({
  recorded,
  state,
  change,
}: {
  recorded: RecordedRun;
  state: State;
  change: Change;
}) {
  const { sentences } = recorded;
  const sentence = sentenceOf(recorded, state);
  const side = sideOf(sentence, state);
  const [L, N] = (side && sentence.sides[side]?.shape) ?? [1, 1];
  const indices = (count: number): [number | null, string][] => [
    [null, "mean"],
    ...Array.from({ length: count }, (_, i): [number, string] => [i, `${i + 1}`]),
  ];
  return (
    <>
      {sentences.length > 1 && (
        <Choice
          name="Recorded sentence"
          value={sentence}
          options={sentences.map((item, i) => [item, `${i + 1}. ${ellipsize(item.source_text, 100)}`])}
          select={({ source_text }) => change(withText(source_text))}
        />
      )}
      {side && Object.keys(sentence.sides).length > 1 && (
        <Choice<Side>
          name="Attention of"
          value={side}
          options={[
            ["decoder", "decoder"],
            ["encoder", "encoder"],
          ]}
          select={(selected) => change({ side: selected, cell: null })}
        />
      )}
      {L > 1 && (
        <Choice
          name="Layer"
          value={indexOf(state.layer, L)}
          options={indices(L)}
          select={(layer) => change({ layer })}
        />
      )}
      {N > 1 && (
        <Choice
          name="Head"
          value={indexOf(state.head, N)}
          options={indices(N)}
          select={(head) => change({ head })}
        />
      )}
      <label>
        Find
        <input
          type="search"
          size={10}
          placeholder="a token"
          value={state.find}
          onInput={({ currentTarget }) => change({ find: currentTarget.value })}
        />
      </label>
    </>
  );
}
