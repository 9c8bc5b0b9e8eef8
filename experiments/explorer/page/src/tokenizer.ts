// Converts text to tokens and back, as experiments/data.

import type { Language } from "./data";

export const PAD_ID = 0;
export const BOS_ID = 1;
export const EOS_ID = 2;
export const UNK_ID = 3;
const NUM_SPECIAL_IDS = 4;
export const UNK = "<unk>";
export const EOS = "</s>";
const JOINER = "￭";
const SPACE = "▁";
const ESCAPE = "￬";
const ESCAPED = [ESCAPE, JOINER, SPACE]; // an escape is followed by an index into this list

// The whitespace of Python. JavaScript's \s also has the byte-order mark, but lacks five other characters.
const WHITESPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const SPACES = new RegExp(`[${WHITESPACE}]+`, "gu");
const BLANK = new RegExp(`^[${WHITESPACE}\\p{Default_Ignorable_Code_Point}]*$`, "u");

/** Returns the tokens of a text. */
export function tokenize(language: Language, text: string): string[] {
  const normalized = language.lowercase ? text.toLowerCase() : text;
  const chunks = normalized.split(SPACES).filter((chunk) => chunk);
  if (language.unit === "character") {
    const escaped = escapeMarks(chunks.join(" ")).replaceAll(" ", SPACE);
    return escaped.match(/<unk>|./gsu) ?? [];
  }
  const { pattern = "", classes = {} } = language;
  const filled = pattern.replace(/\{(\w+)\}/g, (_, name) => classes[name]);
  const expression = new RegExp(filled, "gu");
  const tokens = chunks.flatMap((chunk) => splitChunk(expression, chunk));
  return language.joins === "elisions" ? tokens.map(displayToken) : tokens;
}

/** Returns the tokens of a text without whitespace. A joiner marks where a token had no space beside it. */
function splitChunk(expression: RegExp, chunk: string): string[] {
  const matches = [...chunk.matchAll(expression)];
  const isWord = matches.map((match) => match[1] !== undefined);
  return matches.map(([token], i) => {
    const prefix = i && !isWord[i] ? JOINER : "";
    const suffix = isWord[i + 1] ? JOINER : "";
    return prefix + escapeMarks(token) + suffix;
  });
}

/** Returns a token without joiners and escapes. */
export function displayToken(token: string): string {
  return unescapeMarks(token.replaceAll(JOINER, ""));
}

/** Returns whether all characters of a text are whitespace or invisible. */
export function isBlank(text: string): boolean {
  return BLANK.test(text);
}

function escapeMarks(text: string): string {
  return text.replace(/[￬￭▁]/gu, (char) => ESCAPE + ESCAPED.indexOf(char));
}

function unescapeMarks(text: string): string {
  return text.replace(/￬([012])/gu, (_, i) => ESCAPED[i]);
}

/** Returns the ids of tokens; UNK_ID for unknown ones. */
export function toIds({ words }: Language, tokens: string[]): number[] {
  const ids = new Map(words.map((word, i) => [word.normalize("NFC"), NUM_SPECIAL_IDS + i]));
  return tokens.map((token) => ids.get(token.normalize("NFC")) ?? UNK_ID);
}

/** Returns the token of an id. */
export function toToken({ words }: Language, id: number): string {
  return id === UNK_ID ? UNK : id === EOS_ID ? EOS : words[id - NUM_SPECIAL_IDS];
}

/** Returns the text of tokens. */
export function detokenize({ joins }: Language, tokens: string[]): string {
  if (joins === "characters") {
    return unescapeMarks(tokens.join("").replaceAll(SPACE, " ").replace(SPACES, " ").replace(/^ | $/gu, ""));
  }
  if (joins === "elisions") return tokens.join(" ").replaceAll("' ", "'");
  return unescapeMarks(tokens.join(" ").replace(/ ?￭ ?/gu, ""));
}
