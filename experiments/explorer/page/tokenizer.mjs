// Text into tokens and back, as experiments/text does it.

/** @import { Language, WordLanguage } from "./data" */

export const PAD = 0;
export const START = 1;
export const END = 2;
export const UNKNOWN = 3;
const NUM_SPECIALS = 4;
export const UNKNOWN_WORD = "<unk>";
export const END_WORD = "</s>";
const JOINER = "￭";
const SPACE = "▁";
const ESCAPE = "￬";
const ESCAPED = [ESCAPE, JOINER, SPACE]; // each by its place in this list

// Python's whitespace: JavaScript's has a byte-order mark besides, and lacks five others.
const BLANK = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const BLANKS = new RegExp(`[${BLANK}]+`, "gu");
const NOTHING = new RegExp(`^[${BLANK}\\p{Default_Ignorable_Code_Point}]*$`, "u");

/**
 * Returns the tokens of a text.
 *
 * @param {Language} language
 * @param {string} text
 * @returns {string[]}
 */
export function tokenize(language, text) {
  const cased = language.lowercase ? text.toLowerCase() : text;
  const chunks = cased.split(BLANKS).filter((chunk) => chunk);
  if (language.unit === "character")
    return (
      escapeMarks(chunks.join(" "))
        .replaceAll(" ", SPACE)
        .match(/<unk>|./gsu) ?? []
    );
  const tokens = chunks.flatMap((chunk) => wordsOf(language, chunk));
  return language.joins === "elisions" ? tokens.map(plain) : tokens;
}

/**
 * Returns the tokens of a text without whitespace.
 *
 * @param {WordLanguage} language
 * @param {string} chunk
 */
function wordsOf(language, chunk) {
  language.expression ??= new RegExp(
    language.pattern.replace(/\{(\w+)\}/g, (_, name) => language.classes[name]),
    "gu",
  );
  const matches = [...chunk.matchAll(language.expression)];
  const isWord = matches.map((match) => match[1] !== undefined);
  return matches.map(([token], i) => {
    const [before, after] = [i && !isWord[i] ? JOINER : "", isWord[i + 1] ? JOINER : ""];
    return before + escapeMarks(token) + after;
  });
}

/**
 * Returns a token as people read it, without joiners.
 *
 * @param {string} token
 */
export function plain(token) {
  return unescapeMarks(token.replaceAll(JOINER, ""));
}

/**
 * Returns whether a text has nothing to see.
 *
 * @param {string} text
 */
export function isBlank(text) {
  return NOTHING.test(text);
}

/**
 * Returns a text whose invisible characters are written as escapes.
 *
 * @param {string} text
 */
export function visible(text) {
  const escaped = (/** @type {string} */ char) => `\\u{${char.codePointAt(0)?.toString(16)}}`;
  return text.replace(/[\p{C}\p{Z}]/gu, (char) => (char === " " ? char : escaped(char)));
}

/** @param {string} text */
function escapeMarks(text) {
  return text.replace(/[￬￭▁]/gu, (char) => ESCAPE + ESCAPED.indexOf(char));
}

/** @param {string} text */
function unescapeMarks(text) {
  return text.replace(/￬([012])/gu, (_, place) => ESCAPED[place]);
}

/**
 * Returns the ids of tokens, UNKNOWN for those not known.
 *
 * @param {Language} language
 * @param {string[]} tokens
 */
export function idsOf(language, tokens) {
  language.ids ??= new Map(language.words.map((word, i) => [word.normalize("NFC"), NUM_SPECIALS + i]));
  const { ids } = language;
  return tokens.map((token) => ids.get(token.normalize("NFC")) ?? UNKNOWN);
}

/**
 * Returns the token of an id.
 *
 * @param {Language} language
 * @param {number} id
 */
export function wordOf(language, id) {
  return id === UNKNOWN ? UNKNOWN_WORD : id === END ? END_WORD : language.words[id - NUM_SPECIALS];
}

/**
 * Returns plain text.
 *
 * @param {Language} language
 * @param {string[]} tokens
 */
export function join(language, tokens) {
  if (language.joins === "characters") {
    return unescapeMarks(tokens.join("").replaceAll(SPACE, " ").replace(BLANKS, " ").replace(/^ | $/gu, ""));
  }
  if (language.joins === "elisions") return tokens.join(" ").replaceAll("' ", "'");
  return unescapeMarks(tokens.join(" ").replace(/ ?￭ ?/gu, ""));
}
