// Shows a translation token by token.

import { useEffect, useState } from "preact/hooks";
import type { Change, State } from "./address";
import { type ShownTranslation, strongestCell } from "./live";

const INTERVAL = 900; // milliseconds for each token
const REDUCED_MOTION_INTERVAL = 2500;

export type Player = ReturnType<typeof usePlayer>;

/** Returns the player of a translation. Playing is one entry of the browser history. */
export function usePlayer(state: State, shown: ShownTranslation | undefined | null, change: Change) {
  const [isPlaying, setIsPlaying] = useState(false);
  const count = shown?.whole.rows.length ?? 0;
  const numShown = Math.min(state.numShown ?? count, count);
  const show = (num: number, isEntry: boolean) => {
    // A selected step moves to the last token that is shown.
    const cell = state.cell && shown && num > 0 ? strongestCell(shown.whole, num - 1) : null;
    change({ numShown: num < count ? num : null, cell }, { isEntry });
  };
  /** Shows one token more or less. */
  const move = (difference: 1 | -1, isEntry = true) => {
    const isAtEnd = numShown === count && difference > 0;
    show(isAtEnd ? 1 : Math.max(numShown + difference, 0), isEntry);
    if (numShown + difference >= count && !isAtEnd) setIsPlaying(false);
  };
  useEffect(() => {
    if (!isPlaying) return;
    const isReduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const timer = setTimeout(() => move(1, false), isReduced ? REDUCED_MOTION_INTERVAL : INTERVAL);
    return () => clearTimeout(timer);
  }, [isPlaying, numShown]);
  const stop = () => setIsPlaying(false);
  const toggle = () => {
    setIsPlaying(!isPlaying && count > 1);
    if (!isPlaying) move(1);
  };
  return { isPlaying, toggle, stop, move };
}
