// Keeps the state of the page in the address. Back in the browser undoes the last change.

import { useEffect, useState } from "preact/hooks";
import type { PageData } from "./data";
import { fromAddress, type State, toAddress } from "./state";

const WRITE_DELAY = 500; // milliseconds; changes that follow each other faster, such as typing, are one entry

/** Changes fields of the state. `isEntry: false` changes the current entry of the history. */
export type Change = (changes: Partial<State>, options?: { isEntry: boolean }) => void;

/** Returns the state, a function that changes it, and the problems of the address. */
export function useAddress(data: PageData): { state: State; change: Change; problems: string[] } {
  const [current, setCurrent] = useState(() => read(data));
  useEffect(() => {
    const update = () => setCurrent(read(data));
    window.addEventListener("hashchange", update);
    return () => window.removeEventListener("hashchange", update);
  }, [data]);
  useEffect(() => {
    if (!current.write) return;
    const timer = setTimeout(() => {
      const address = toAddress(current.state, data);
      if (current.write === "replace") history.replaceState(null, "", address);
      else if (address !== (location.hash || "#")) history.pushState(null, "", address);
    }, WRITE_DELAY);
    return () => clearTimeout(timer);
  }, [current, data]);
  const change: Change = (changes, { isEntry } = { isEntry: true }) =>
    setCurrent(({ state, problems }) => {
      return { state: { ...state, ...changes }, problems, write: isEntry ? "push" : "replace" };
    });
  return { state: current.state, problems: current.problems, change };
}

/** Returns the state of the address, which need not be written. */
function read(data: PageData) {
  return { ...fromAddress(location.hash, data), write: null as "push" | "replace" | null };
}
