// Text into tokens and back, as experiments/text does it.

export const PAD = 0;
export const START = 1;
export const END = 2;
export const UNKNOWN = 3;
const NUM_SPECIALS = 4;
export const UNKNOWN_WORD = "<unk>";
export const END_WORD = "</s>";
const SPACE = "▁";

const LETTER = "[\\p{L}\\p{N}_\\u0300-\\u036f]";
const WORD = `${LETTER}+(?:(?:-|(?<=\\p{Nd})[.,:](?=\\p{Nd}))${LETTER}+)*(?:['\u2019](?=${LETTER}))?`;
// Python's whitespace: JavaScript's has a byte-order mark besides, and lacks five others.
const BLANK = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const TOKEN = new RegExp(`${WORD}|[^\\p{L}\\p{N}_${BLANK}\\u0300-\\u036f]`, "gu");
const BLANKS = new RegExp(`[${BLANK}${SPACE}]+`, "gu");

const NO_SPACE_BEFORE = new Set(".,;:!?)]}%…»”'\u2019");
const NO_SPACE_AFTER = new Set('([{«“„\u2018¿¡"');
const CLOSED_BY = { '"': '"', "„": "“" };

/** Returns the tokens of a text in a language, which is what `_described` of live.py has made. */
export function tokenize(language, text) {
  const normal = (language.lowercase ? text.toLowerCase() : text).normalize("NFC");
  if (language.unit === "character")
    return [...normal.replace(BLANKS, " ").replace(/^ | $/gu, "").replaceAll(" ", SPACE)];
  return normal.match(TOKEN) ?? [];
}

/** Returns the ids of tokens, UNKNOWN for those not known. */
export function idsOf(language, tokens) {
  language.ids ??= new Map(language.words.map((word, i) => [word, NUM_SPECIALS + i]));
  return tokens.map((token) => language.ids.get(token) ?? UNKNOWN);
}

/** Returns the token of an id. */
export function wordOf(language, id) {
  return id === UNKNOWN ? UNKNOWN_WORD : id === END ? END_WORD : language.words[id - NUM_SPECIALS];
}

/** Returns plain text. */
export function join(language, tokens) {
  if (language.joins === "characters") return tokens.join("").replaceAll(SPACE, " ");
  if (language.joins === "elisions") return tokens.join(" ").replaceAll("' ", "'");
  let text = "";
  let [isJoined, awaited] = [true, null];
  for (const word of tokens) {
    const closes = NO_SPACE_BEFORE.has(word) || word === awaited;
    text += isJoined || closes ? word : ` ${word}`;
    awaited = word === awaited ? null : (CLOSED_BY[word] ?? awaited);
    const isElided = word.length > 1 && /['\u2019]$/u.test(word);
    isJoined = isElided || (NO_SPACE_AFTER.has(word) && !closes);
  }
  return text;
}
