// Converts text to tokens and back, as experiments/data.

/** @import { Language, WordLanguage } from "./data" */

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

/**
 * Returns the tokens of a text.
 *
 * @param {Language} language
 * @param {string} text
 * @returns {string[]}
 */
export function tokenize(language, text) {
  const normalized = language.lowercase ? text.toLowerCase() : text;
  const chunks = normalized.split(SPACES).filter((chunk) => chunk);
  if (language.unit === "character") {
    const escaped = escapeMarks(chunks.join(" ")).replaceAll(" ", SPACE);
    return escaped.match(/<unk>|./gsu) ?? [];
  }
  const tokens = chunks.flatMap((chunk) => splitChunk(language, chunk));
  return language.joins === "elisions" ? tokens.map(displayToken) : tokens;
}

/**
 * Returns the tokens of a text without whitespace.
 *
 * @param {WordLanguage} language
 * @param {string} chunk
 */
function splitChunk(language, chunk) {
  language.expression ??= new RegExp(
    language.pattern.replace(/\{(\w+)\}/g, (_, name) => language.classes[name]),
    "gu",
  );
  const matches = [...chunk.matchAll(language.expression)];
  const isWord = matches.map((match) => match[1] !== undefined);
  return matches.map(([token], i) => {
    const prefix = i && !isWord[i] ? JOINER : "";
    const suffix = isWord[i + 1] ? JOINER : "";
    return prefix + escapeMarks(token) + suffix;
  });
}

/**
 * Returns a token without joiners and escapes.
 *
 * @param {string} token
 */
export function displayToken(token) {
  return unescapeMarks(token.replaceAll(JOINER, ""));
}

/**
 * Returns whether all characters of a text are whitespace or invisible.
 *
 * @param {string} text
 */
export function isBlank(text) {
  return BLANK.test(text);
}

/**
 * Returns a text with invisible characters as escapes.
 *
 * @param {string} text
 */
export function escapeInvisible(text) {
  const toEscape = (/** @type {string} */ char) => `\\u{${char.codePointAt(0)?.toString(16)}}`;
  return text.replace(/[\p{C}\p{Z}]/gu, (char) => (char === " " ? char : toEscape(char)));
}

/** @param {string} text */
function escapeMarks(text) {
  return text.replace(/[￬￭▁]/gu, (char) => ESCAPE + ESCAPED.indexOf(char));
}

/** @param {string} text */
function unescapeMarks(text) {
  return text.replace(/￬([012])/gu, (_, i) => ESCAPED[i]);
}

/**
 * Returns the ids of tokens; UNK_ID for unknown ones.
 *
 * @param {Language} language
 * @param {string[]} tokens
 */
export function toIds(language, tokens) {
  language.ids ??= new Map(language.words.map((word, i) => [word.normalize("NFC"), NUM_SPECIAL_IDS + i]));
  const { ids } = language;
  return tokens.map((token) => ids.get(token.normalize("NFC")) ?? UNK_ID);
}

/**
 * Returns the token of an id.
 *
 * @param {Language} language
 * @param {number} id
 */
export function toToken(language, id) {
  return id === UNK_ID ? UNK : id === EOS_ID ? EOS : language.words[id - NUM_SPECIAL_IDS];
}

/**
 * Returns the text of tokens.
 *
 * @param {Language} language
 * @param {string[]} tokens
 */
export function detokenize(language, tokens) {
  if (language.joins === "characters") {
    return unescapeMarks(tokens.join("").replaceAll(SPACE, " ").replace(SPACES, " ").replace(/^ | $/gu, ""));
  }
  if (language.joins === "elisions") return tokens.join(" ").replaceAll("' ", "'");
  return unescapeMarks(tokens.join(" ").replace(/ ?￭ ?/gu, ""));
}
