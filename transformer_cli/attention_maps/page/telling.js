// What the picture says, in words: below the picture for everybody, aloud for who cannot see it.

function decimals(value) {
  return value.toFixed(3);
}

/** Where the numbers come from: "cross-attention, layer 6, head 3, pieces"; only what the view lets choose. */
function blockText() {
  const { view, block, layer, head, unit } = state;
  const kinds = view === "steps" ? KINDS.filter((kind) => kind !== "encoder") : [block];
  const parts = [kinds.map((kind) => BLOCK_NAMES[kind]).join(" and ") || "no attention"];
  if (OFFERED[view].includes("layer"))
    parts.push(layer ? `layer ${layer}` : "mean of all layers", head ? `head ${head}` : "mean of all heads");
  if (OFFERED[view].includes("unit")) parts.push(unit);
  return parts.join(", ");
}

const BLOCK_NAMES = {
  encoder: "encoder self-attention",
  decoder: "decoder self-attention",
  cross: "cross-attention",
};

const HIDDEN_TEXT = {
  [LATER]: "hidden by the mask: it comes later than this row, so the weight is exactly 0",
  [PADDING]: "hidden by the mask: it is padding, so the weight is exactly 0",
};

function cellText(matrix, row, column) {
  const pair = `${rowText(matrix.rows[row])} looks at ${plain(matrix.columns[column])}`;
  const hidden = matrix.hiddenAt(row, column);
  if (hidden !== VISIBLE) return `${pair}: ${HIDDEN_TEXT[hidden]}.`;
  const value = matrix.at(row, column);
  const ranked = matrix.ranked(row);
  const rank = `rank ${ranked.indexOf(column) + 1} of ${ranked.length}`;
  const others =
    state.head === 0
      ? ""
      : `, mean of all heads ${decimals(matrixOf(state.block, state.layer, 0, state.unit).at(row, column))}`;
  const small = value < 0.0005 ? " \u2013 allowed, but almost nothing" : "";
  return `${pair}: ${decimals(value)}, ${rank}${others}${small}.`;
}

function rowSummary(matrix, row) {
  const named = (column) => `${plain(matrix.columns[column])} ${matrix.at(row, column).toFixed(2)}`;
  return `${rowText(matrix.rows[row])} looks at ${matrix.ranked(row).slice(0, 3).map(named).join(", ")}.`;
}

function columnSummary(matrix, column) {
  const named = (row) => `${rowText(matrix.rows[row])} ${matrix.at(row, column).toFixed(2)}`;
  const best = matrix.rankedRows(column).slice(0, 3).map(named);
  return `${plain(matrix.columns[column])} is looked at by ${best.join(", ") || "nothing"}.`;
}

/** The strongest links of a matrix, for a label. */
function matrixText(matrix) {
  let best = [0, 0];
  for (let row = 0; row < matrix.rows.length; row++)
    for (let column = 0; column < matrix.columns.length; column++)
      if (matrix.at(row, column) > matrix.at(...best)) best = [row, column];
  const size = `${matrix.rows.length} rows by ${matrix.columns.length} columns`;
  return `${blockText()}, ${size}; strongest: ${cellText(matrix, ...best)}`;
}

/** Speaks to a screen reader; a later text replaces an earlier one. */
function say(text) {
  byId("spoken").textContent = text;
}
