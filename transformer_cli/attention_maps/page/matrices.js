// The numbers: weights decoded when first asked for, averaged over heads and layers, merged from pieces to words.
// Rows are queries, columns are keys; what is hidden is known from the lengths and never read off the zeros.

const VISIBLE = 0;
const LATER = 1;
const PADDING = 2;

const maps = JSON.parse(byId("maps").textContent);
const KINDS = ["encoder", "decoder", "cross"].filter((kind) => maps.blocks.some((block) => block.kind === kind));

/** What a side's positions are, by unit: {text, special, unknown, padding, group}, group being the word's number. */
const TOKENS = {
  source: { pieces: piecesOf(maps.source), words: null },
  target: { pieces: piecesOf(maps.target), words: null },
};
for (const [name, side] of Object.entries(TOKENS)) side.words = wordsOf(side.pieces, maps[name].word_texts);

function piecesOf(side) {
  return side.pieces.map((text, index) => ({
    text,
    id: side.ids[index],
    group: side.words[index],
    special: side.marks[index] === 1,
    unknown: side.unknown.includes(index),
    padding: index >= side.pieces.length - side.padding,
  }));
}

function wordsOf(pieces, texts) {
  return texts.map((text, group) => {
    const [first, ...more] = pieces.filter((piece) => piece.group === group);
    return { ...first, text, id: undefined, unknown: [first, ...more].some((piece) => piece.unknown) };
  });
}

/** {rows, columns} of a kind. A row is {reads, writes}: in the decoder it reads one token and writes the next. */
function axesOf(kind, unit) {
  const { source, target } = { source: TOKENS.source[unit], target: TOKENS.target[unit] };
  const pairs = target.slice(1).map((writes, index) => ({ reads: target[index], writes }));
  return {
    rows: kind === "encoder" ? source.map((reads) => ({ reads })) : pairs,
    columns: kind === "decoder" ? target.slice(0, -1) : source,
  };
}

class Matrix {
  constructor(rows, columns, values, hidden) {
    Object.assign(this, { rows, columns, values, hidden });
  }

  at(row, column) {
    return this.values[row * this.columns.length + column];
  }

  hiddenAt(row, column) {
    return this.hidden[row * this.columns.length + column];
  }

  largest() {
    return this.values.reduce((most, value) => Math.max(most, value), 0);
  }

  /** The columns that a row may see, by falling weight. */
  ranked(row) {
    const columns = this.columns.map((_, column) => column).filter((column) => this.hiddenAt(row, column) === VISIBLE);
    return columns.sort((a, b) => this.at(row, b) - this.at(row, a) || a - b);
  }

  /** The rows that may see a column, by falling weight. */
  rankedRows(column) {
    const rows = this.rows.map((_, row) => row).filter((row) => this.hiddenAt(row, column) === VISIBLE);
    return rows.sort((a, b) => this.at(b, column) - this.at(a, column) || a - b);
  }
}

function blocksOf(kind) {
  return maps.blocks.filter((block) => block.kind === kind);
}

function layersOf(kind) {
  return blocksOf(kind).map((block) => block.layer);
}

/** The numbers of the heads that a layer has; of all layers for layer 0. */
function headsOf(kind, layer) {
  const blocks = blocksOf(kind).filter((block) => layer === 0 || block.layer === layer);
  return [...new Set(blocks.flatMap((block) => block.heads))].sort((a, b) => a - b);
}

/** What can be chosen: each number, and 0 for the mean where there are several. */
function layerChoices(kind) {
  return withMean(layersOf(kind));
}

function headChoices(kind, layer) {
  return withMean(headsOf(kind, layer));
}

function withMean(numbers) {
  return numbers.length === 1 ? numbers : [0, ...numbers];
}

const known = new Map();

/**
 * One head of one layer; layer 0 is the mean over the layers, head 0 the mean over the heads.
 * by: whether a decoder's rows belong to the word that they read or, as the source is looked at for, that they write.
 */
function matrixOf(kind, layer, head, unit, by = kind === "cross" ? "writes" : "reads") {
  const key = [kind, layer, head, unit, by].join(" ");
  if (!known.has(key)) known.set(key, unit === "words" ? merged(kind, layer, head, by) : averaged(kind, layer, head));
  return known.get(key);
}

function averaged(kind, layer, head) {
  const { rows, columns } = axesOf(kind, "pieces");
  const isMeant = (block) => (layer === 0 || block.layer === layer) && (head === 0 || block.heads.includes(head));
  const blocks = blocksOf(kind).filter(isMeant);
  const size = rows.length * columns.length;
  const values = new Float32Array(size);
  for (const block of blocks) {
    const weights = decoded(block);
    const heads = head === 0 ? block.heads.map((_, index) => index) : [block.heads.indexOf(head)];
    const share = 1 / (65535 * heads.length * blocks.length);
    for (const index of heads)
      for (let cell = 0; cell < size; cell++) values[cell] += weights[index * size + cell] * share;
  }
  return new Matrix(rows, columns, values, hiddenCells(kind, rows, columns));
}

/** 16-bit integers, little-endian: 65535 is a weight of 1. */
function decoded(block) {
  if (!block.decoded) {
    const bytes = atob(block.weights);
    block.decoded = new Uint16Array(bytes.length / 2);
    for (let i = 0; i < block.decoded.length; i++)
      block.decoded[i] = bytes.charCodeAt(2 * i) | (bytes.charCodeAt(2 * i + 1) << 8);
    block.weights = null;
  }
  return block.decoded;
}

function hiddenCells(kind, rows, columns) {
  const hidden = new Uint8Array(rows.length * columns.length);
  for (let row = 0; row < rows.length; row++)
    for (let column = 0; column < columns.length; column++)
      if (columns[column].padding) hidden[row * columns.length + column] = PADDING;
      else if (kind === "decoder" && column > row) hidden[row * columns.length + column] = LATER;
  return hidden;
}

/** A word is given what its pieces are given, and looks as its pieces look on average: rows still sum to 1. */
function merged(kind, layer, head, by) {
  const fine = matrixOf(kind, layer, head, "pieces");
  const { rows, columns } = axesOf(kind, "words");
  const rowOf = places(fine.rows.map((row) => (row[by] ?? row.reads).group));
  const columnOf = places(fine.columns.map((column) => column.group));
  const perRow = new Array(rows.length).fill(0);
  for (const row of rowOf) perRow[row]++;
  const values = new Float32Array(rows.length * columns.length);
  const hidden = new Uint8Array(values.length).fill(PADDING + 1);
  for (let row = 0; row < fine.rows.length; row++)
    for (let column = 0; column < fine.columns.length; column++) {
      const cell = rowOf[row] * columns.length + columnOf[column];
      values[cell] += fine.at(row, column) / perRow[rowOf[row]];
      hidden[cell] = Math.min(hidden[cell], fine.hiddenAt(row, column));
    }
  return new Matrix(rows, columns, values, hidden);
}

/** For each piece, the place of its word among the words that are there. */
function places(groups) {
  const distinct = [...new Set(groups)];
  return groups.map((group) => distinct.indexOf(group));
}
