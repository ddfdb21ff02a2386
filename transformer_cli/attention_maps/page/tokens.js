// A token as a reader sees it: the space mark faint, invisible characters by name, specials set apart.

const SPACE_MARK = "\u2581";
// Scripts whose letters a joiner shapes: in them it is a part of what is written.
const SHAPED = "\\u0600-\\u0dff\\u1800-\\u18af\\u{10a00}-\\u{11fff}\\u{1e900}-\\u{1e95f}";
const AFTER_LETTER = `(?<=[\\p{L}\\p{N}${SHAPED}])[\\u200c\\u200d]`;
// Controls, bidirectional and zero-width marks, unpaired surrogates, private use, spaces other than the space, blank
// letters; but the joiner between two pictures is a part of the emoji.
const UNSEEN =
  "(?<![\\p{Extended_Pictographic}\\p{Emoji_Modifier}\\ufe0f])\\u200d|\\u200d(?!\\p{Extended_Pictographic})" +
  "|(?!\\u200d)[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Co}\\p{Zl}\\p{Zp}\\u115f\\u1160\\u2800\\u3164\\uffa0]|(?! )\\p{Zs}";
const INVISIBLE = new RegExp(`((?!${AFTER_LETTER}(?=[${SHAPED}]))(?:${UNSEEN}))`, "u");
// The same of a piece that stands between others, to whose letters its own are joined.
const INVISIBLE_IN_TEXT = new RegExp(
  `((?!${AFTER_LETTER}(?:[${SHAPED}]|$)|^[\\u200c\\u200d][${SHAPED}])(?:${UNSEEN}))`,
  "u",
);

function codePoint(character) {
  return "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
}

/** The text as it can be spoken or put into an attribute: without the space mark, invisible characters by name. */
function plain(token) {
  const text = token.text.replaceAll(SPACE_MARK, " ").trim();
  const parts = text.split(INVISIBLE).map((part, index) => (index % 2 ? codePoint(part) : carried(part)));
  return parts.join("") || "space";
}

/** The text, on a dotted circle where it begins with a mark that has no letter to stand on. */
function carried(text) {
  return text.replace(/^\p{M}/u, "\u25cc$&");
}

/** What plain() says, drawn. flows: between others as text, where a mark finds the letter of the piece before. */
function tokenNode(token, { mark = false, flows = false } = {}) {
  if (token.special) return element("span", { class: "special" }, token.text.replace(/^<(.*)>$/u, "$1"));
  const alone = token.text === SPACE_MARK;
  const spaceMark = () => element("span", { class: "space-mark", "aria-hidden": alone ? null : "true" }, "\u2423");
  const parts = token.text.split(flows ? INVISIBLE_IN_TEXT : INVISIBLE).map((part, index) => {
    if (index % 2) return element("span", { class: "code-point" }, codePoint(part));
    if (!mark && !alone) {
      const text = part.replaceAll(SPACE_MARK, "");
      return flows && !/^\p{M}+$/u.test(text) ? text : carried(text); // alone it would have no width to be pointed at
    }
    return part.split(/(\u2581)/u).map((piece) => (piece === SPACE_MARK ? spaceMark() : carried(piece)));
  });
  return element("bdi", { class: token.unknown ? "unknown" : null }, parts);
}

/** A row of the decoder reads one piece and writes the next. */
function rowText(row) {
  return row.writes ? `${plain(row.reads)} \u2192 ${plain(row.writes)}` : plain(row.reads);
}

function rowNode(row, options) {
  if (!row.writes) return tokenNode(row.reads, options);
  const arrow = element("span", { class: "arrow" }, "\u2192");
  return element("span", { class: "pair" }, tokenNode(row.reads, options), arrow, tokenNode(row.writes, options));
}
