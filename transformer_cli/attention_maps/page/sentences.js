// The view it opens on: point at a word, and the words that it looks at light up.

const FAINT = 0.03;

function sentencesView(root) {
  const matrix = shownMatrix(state.block === "cross" && state.word === "written" ? "writes" : "reads");
  const self = state.block !== "cross";
  const rowTokens = matrix.rows.map((row) => (self || state.word === "read" ? row.reads : row.writes));
  const links = drawing("svg", { class: "links", "aria-hidden": "true" });
  const below = element("div", { class: "below" });
  const queries = new Sentence(rowTokens, {
    label: { encoder: "Source", decoder: "Translation, as the decoder reads it", cross: "Translation" }[state.block],
    onpoint: (row) => show(row === null ? resting() : { row }),
    onpick: (row) => change({ row, column: null }),
    start: resting().row ?? 0,
  });
  const keys = self
    ? queries
    : new Sentence(matrix.columns, {
        label: "Source",
        onpoint: (column) => show(column === null ? resting() : { column }),
        onpick: (column) => change({ row: null, column }),
        start: state.column ?? 0,
      });
  queries.items[resting().row ?? 0].dataset.start = "";

  /** What is shown while nothing is pointed at. */
  function resting() {
    if (state.row !== null) return { row: state.row };
    if (state.column !== null) return self ? { row: state.column } : { column: state.column };
    return { row: tellingRow(matrix) };
  }

  function show({ row = null, column = null }) {
    const [asking, others] = row !== null ? [queries, keys] : [keys, queries];
    const cell = (index) => (row !== null ? [row, index] : [index, column]);
    const weightAt = (index) => matrix.at(...cell(index));
    asking.unshade();
    others.shade(weightAt, (index) => matrix.hiddenAt(...cell(index)));
    others.mark(null);
    asking.mark(row ?? column);
    below.replaceChildren(row !== null ? keysOfRow(matrix, row) : rowsOfColumn(matrix, column));
    link(links, asking.items[row ?? column], others.items, weightAt);
  }

  const sentences = self ? [queries.node] : [keys.node, queries.node];
  const stage = element("div", { class: self ? "stage self" : "stage linked" }, links, sentences);
  root.replaceChildren(stage, below);
  show(resting());
  const redraw = new ResizeObserver(() => show(resting()));
  redraw.observe(stage);
  return {
    mark() {
      const { row, column } = resting();
      show({ row, column });
      say(row === undefined ? columnSummary(matrix, column) : rowSummary(matrix, row));
    },
    leave: () => redraw.disconnect(),
  };
}

/** The row that is surest of one piece of text: a first picture that says something. */
function tellingRow(matrix) {
  let best = [0, -1];
  matrix.rows.forEach((row, at) => {
    const [column] = matrix.ranked(at);
    const token = row.writes ?? row.reads;
    if (column === undefined || matrix.columns[column].special || token.special || row.reads === matrix.columns[column])
      return;
    if (matrix.at(at, column) > best[1]) best = [at, matrix.at(at, column)];
  });
  return best[0];
}

function keysOfRow(matrix, row) {
  const best = matrix.ranked(row).slice(0, 5);
  const entries = best.map((column) => [tokenNode(matrix.columns[column]), matrix.at(row, column)]);
  return ranking([rowNode(matrix.rows[row]), element("small", {}, " looks at")], entries);
}

function rowsOfColumn(matrix, column) {
  const best = matrix.rankedRows(column).slice(0, 5);
  const entries = best.map((row) => [rowNode(matrix.rows[row]), matrix.at(row, column)]);
  return ranking([tokenNode(matrix.columns[column]), element("small", {}, " is looked at by")], entries);
}

/** Curves from the token that is asked about to those it is tied to: thicker means more. */
function link(svg, from, others, weightAt) {
  const ground = svg.getBoundingClientRect();
  const curves = others.flatMap((item, index) => {
    const weight = weightAt(index);
    if (weight < FAINT || item === from) return [];
    const d = curve(from.getBoundingClientRect(), item.getBoundingClientRect(), ground);
    return drawing("path", { d, "stroke-width": 1 + 7 * weight, "stroke-opacity": 0.15 + 0.6 * weight });
  });
  svg.replaceChildren(...curves);
}

function curve(from, to, ground) {
  const x = (box) => box.left + box.width / 2 - ground.left;
  if (Math.abs(from.top - to.top) < 2) {
    const top = from.top - ground.top - 2;
    const height = Math.min(90, 20 + Math.abs(x(from) - x(to)) * 0.22);
    return `M${x(from)},${top} C${x(from)},${top - height} ${x(to)},${top - height} ${x(to)},${top}`;
  }
  const below = from.top > to.top;
  const start = (below ? from.top - 2 : from.bottom + 2) - ground.top;
  const end = (below ? to.bottom + 2 : to.top - 2) - ground.top;
  const middle = (start + end) / 2;
  return `M${x(from)},${start} C${x(from)},${middle} ${x(to)},${middle} ${x(to)},${end}`;
}
