// The controls above the results.

import { BEAM_SIZES, checkpointSteps, type PageProps, toAddress, withReset, withText } from "./address";
import type { LiveRun, RecordedRun, Run } from "./data";
import { ellipsize } from "./format";
import { Button, Choice } from "./inputs";
import type { Player } from "./player";
import { type Index, indexOf, sentenceOf, sideOf } from "./recorded";

/** Shows the controls of the runs that the state shows. */
export function Controls(props: PageProps & { runs: Run[]; player: Player }) {
  const { data, runs, state, change } = props;
  const live = runs.find((run) => run.checkpoints !== undefined);
  const recorded = runs.find((run) => run.sentences !== undefined);
  return (
    <form onSubmit={(event) => event.preventDefault()}>
      {data.runs.length > 1 && <RunControls {...props} />}
      {live && <SentenceControls {...props} live={live} />}
      <div class="bar">
        {live && <PlayerControls {...props} />}
        <fieldset class="group" aria-label="View">
          <Button
            label="Heatmap"
            isPressed={state.view === "heatmap"}
            press={() => change({ view: "heatmap" })}
          />
          <Button label="Arcs" isPressed={state.view === "arcs"} press={() => change({ view: "arcs" })} />
        </fieldset>
        {live && <ModelControls {...props} live={live} />}
        {recorded && <RecordedControls {...props} recorded={recorded} />}
      </div>
    </form>
  );
}

function RunControls({ data, state, change }: PageProps) {
  const names = data.runs.map(({ name }) => name);
  const others = names.filter((name) => name !== state.run);
  const selectRun = (i: number) => {
    const compare = state.compare === names[i] ? state.run : state.compare;
    change({ ...withText(state.text), run: names[i], compare });
  };
  return (
    <div class="line">
      <Choice label="Run" names={names} selected={names.indexOf(state.run)} select={selectRun} />
      <Choice
        label="Compare with"
        names={["none", ...others]}
        selected={others.indexOf(state.compare ?? "") + 1}
        select={(i) => change({ compare: others[i - 1] ?? null })}
      />
    </div>
  );
}

function SentenceControls({ live, state, change }: PageProps & { live: LiveRun }) {
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

function PlayerControls({ state, change, player }: PageProps & { player: Player }) {
  return (
    <fieldset class="group player" aria-label="Token by token">
      <Button label="Previous" press={() => player.move(-1)} />
      <Button label={player.isPlaying ? "Pause" : "Play"} className="play" press={player.toggle} />
      <Button label="Next" press={() => player.move(1)} />
      <Button label="All" isDisabled={state.numShown === null} press={() => change({ numShown: null })} />
    </fieldset>
  );
}

function ModelControls({ data, state, change, live }: PageProps & { live: LiveRun }) {
  const steps = checkpointSteps(data.runs);
  const step = state.checkpoint ?? live.step;
  const sizes = [...new Set([...BEAM_SIZES, live.beam_size])];
  const isReset = toAddress(state, data) === toAddress({ ...state, ...withReset(state) }, data);
  return (
    <>
      <Choice
        label="Beam size"
        names={sizes}
        selected={sizes.indexOf(state.beamSize ?? live.beam_size)}
        select={(i) => change({ beamSize: sizes[i], hypothesis: 0, cell: null })}
      />
      {steps.length > 1 && (
        <label>
          Training step
          <input
            type="range"
            max={steps.length - 1}
            value={steps.indexOf(step)}
            aria-valuetext={`${step}`}
            onInput={({ currentTarget }) => change({ checkpoint: steps[Number(currentTarget.value)] })}
          />
          <output>{step.toLocaleString("en")}</output>
        </label>
      )}
      <Button label="Reset" isDisabled={isReset} press={() => change(withReset(state))} />
    </>
  );
}

function RecordedControls({ recorded, state, change }: PageProps & { recorded: RecordedRun }) {
  const sentence = sentenceOf(recorded, state);
  const side = sideOf(sentence, state);
  const [L, N] = (side && sentence.sides[side]?.shape) ?? [1, 1];
  const texts = recorded.sentences.map(({ source_text }) => source_text);
  const sides = ["decoder", "encoder"] as const;
  return (
    <>
      {texts.length > 1 && (
        <Choice
          label="Recorded sentence"
          names={texts.map((text, i) => `${i + 1}. ${ellipsize(text, 100)}`)}
          selected={texts.indexOf(sentence.source_text)}
          select={(i) => change(withText(texts[i]))}
        />
      )}
      {side && Object.keys(sentence.sides).length > 1 && (
        <Choice
          label="Attention of"
          names={[...sides]}
          selected={sides.indexOf(side)}
          select={(i) => change({ side: sides[i], cell: null })}
        />
      )}
      <IndexChoice label="Layer" count={L} index={state.layer} select={(layer) => change({ layer })} />
      <IndexChoice label="Head" count={N} index={state.head} select={(head) => change({ head })} />
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

type IndexChoiceProps = { label: string; count: number; index: Index; select: (i: Index) => void };

/** A choice of a layer or a head, or of the mean of all; nothing if there is only one. */
function IndexChoice({ label, count, index, select }: IndexChoiceProps) {
  if (count === 1) return null;
  const names = ["mean", ...Array.from({ length: count }, (_, i) => i + 1)];
  const selected = (indexOf(index, count) ?? -1) + 1;
  return <Choice {...{ label, names, selected }} select={(i) => select(i ? i - 1 : null)} />;
}
