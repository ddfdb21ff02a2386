// Which words two texts do not share.

const MOST_PAIRS = 4e6;
const segmenter = typeof Intl.Segmenter === "function" ? new Intl.Segmenter(undefined, { granularity: "word" }) : null;

/** Words, marks and spaces, one after the other: put together they are the text. */
function cut(text) {
  return segmenter ? Array.from(segmenter.segment(text), (one) => one.segment) : (text.match(/\s+|[^\s]+/g) ?? []);
}

function isSpace(word) {
  return word.trim() === "";
}

/** For each of two lists, which entries belong to their longest common subsequence. */
function shared(one, other) {
  const width = other.length + 1;
  const longest = new Uint16Array((one.length + 1) * width);
  for (let i = one.length - 1; i >= 0; i--)
    for (let j = other.length - 1; j >= 0; j--)
      longest[i * width + j] =
        one[i] === other[j]
          ? longest[(i + 1) * width + j + 1] + 1
          : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
  const kept = [new Set(), new Set()];
  for (let i = 0, j = 0; i < one.length && j < other.length; ) {
    if (one[i] === other[j]) {
      kept[0].add(i++);
      kept[1].add(j++);
    } else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) i++;
    else j++;
  }
  return kept;
}

/** Two texts as runs [text, whether the other has it], or null where they are too long to compare. */
function differences(one, other) {
  const all = [cut(one), cut(other)];
  const words = all.map((list) => list.filter((word) => !isSpace(word)));
  if (words[0].length * words[1].length > MOST_PAIRS) return null;
  const kept = shared(...words);
  return all.map((list, side) => runs(list, kept[side]));
}

/** Neighbours that are both shared, or both not, are one run; a space goes with the words around it. */
function runs(list, kept) {
  const found = [];
  let place = 0;
  let space = "";
  for (const word of list) {
    if (isSpace(word)) {
      space += word;
      continue;
    }
    const is = kept.has(place++);
    const last = found.at(-1);
    if (last && last[1] === is) last[0] += space + word;
    else {
      if (space) found.push([space, true]);
      found.push([word, is]);
    }
    space = "";
  }
  if (space) found.push([space, true]);
  return found;
}
