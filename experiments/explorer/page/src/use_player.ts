// Shows a translation token by token.

import { useEffect, useState } from "preact/hooks";
import { type ShownTranslation, strongestCell } from "./live_view";
import type { State } from "./state";
import type { Change } from "./use_address";

const INTERVAL = 900; // milliseconds for each token
const REDUCED_MOTION_INTERVAL = 2500;

export interface Player {
  isPlaying: boolean;
  toggle: () => void;
  stop: () => void;
  previous: () => void;
  next: () => void;
  showAll: () => void;
}

/** Returns the player of a translation. Playing is one entry of the browser history. */
export function usePlayer(state: State, shown: ShownTranslation | null | undefined, change: Change): Player {
  const [isPlaying, setIsPlaying] = useState(false);
  const count = shown?.whole.rows.length ?? 0;
  const numShown = Math.min(state.numShown ?? count, count);

  /** Shows the first tokens. A selected step moves to the last one of them. */
  const show = (num: number, isEntry = true) => {
    const cell = state.cell && shown && num > 0 ? strongestCell(shown.whole, num - 1) : null;
    change({ numShown: num < count ? num : null, cell }, { isEntry });
  };
  useEffect(() => {
    if (!isPlaying) return;
    const isReduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const advance = () => {
      show(numShown + 1, false);
      if (numShown + 1 >= count) setIsPlaying(false);
    };
    const timer = setTimeout(advance, isReduced ? REDUCED_MOTION_INTERVAL : INTERVAL);
    return () => clearTimeout(timer);
  }, [isPlaying, numShown]);

  const stop = () => setIsPlaying(false);
  return {
    isPlaying,
    toggle: () => {
      if (!isPlaying) show(numShown < count ? numShown + 1 : 1);
      setIsPlaying(!isPlaying && count > 1);
    },
    stop,
    previous: () => {
      stop();
      show(Math.max(numShown - 1, 0));
    },
    next: () => {
      stop();
      show(state.numShown === null ? 1 : numShown + 1);
    },
    showAll: () => {
      stop();
      change({ numShown: null });
    },
  };
}
