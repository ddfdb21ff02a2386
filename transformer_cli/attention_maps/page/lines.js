// Queries left, keys right, and between them the fewest lines that carry most of each row's weight.

const ROW_HEIGHT = 26;
const MOST_LINES = 5000;

function linesView(root) {
  const matrix = shownMatrix();
  const svg = drawing("svg", { "aria-hidden": "true" });
  const rows = matrix.rows.map((row) => rowNode(row));
  const columns = matrix.columns.map((token) => tokenNode(token));
  const left = lineEnds(rows, state.row, (row) => change({ row, column: null }));
  const right = lineEnds(columns, state.column, (column) => change({ row: null, column }));
  const count = element("output", {});
  const slider = element("input", {
    type: "range",
    min: 50,
    max: 100,
    value: state.mass,
    id: "mass",
    oninput: () => change({ mass: Number(slider.value) }),
  });
  const label = element("label", { for: "mass" }, "Lines for this share of each row");
  const field = element("div", { class: "lines" }, left.node, svg, right.node);
  root.replaceChildren(
    element("p", { class: "slider" }, label, slider, count),
    field,
  );
  left.items[0].dataset.start = "";

  let lines = [];
  function draw() {
    lines = strongest(matrix, state.mass / 100).sort((a, b) => b.weight - a.weight);
    const drawn = lines.slice(0, MOST_LINES);
    const width = svg.clientWidth;
    svg.setAttribute("height", ROW_HEIGHT * Math.max(matrix.rows.length, matrix.columns.length));
    for (const line of drawn) {
      const [y1, y2] = [(line.row + 0.5) * ROW_HEIGHT, (line.column + 0.5) * ROW_HEIGHT];
      line.path = drawing("path", {
        d: `M0,${y1} C${width / 2},${y1} ${width / 2},${y2} ${width},${y2}`,
        "stroke-width": 0.5 + 4 * line.weight,
        "stroke-opacity": 0.12 + 0.88 * line.weight,
      });
    }
    svg.replaceChildren(...drawn.map((line) => line.path));
    show(state.row, state.column);
  }

  function show(row, column) {
    left.items.forEach((item, index) => item.classList.toggle("marked", index === row));
    right.items.forEach((item, index) => item.classList.toggle("marked", index === column));
    const asked = row !== null || column !== null;
    const asks = (at) => (row !== null ? at.row === row : column === null || at.column === column);
    for (const line of lines) {
      line.path?.classList.toggle("off", !asks(line));
      line.path?.classList.toggle("on", asked && asks(line));
    }
    const capped = lines.length > MOST_LINES ? `, the strongest ${MOST_LINES} drawn` : "";
    let [all, where] = [matrix.hidden.filter((hidden) => hidden === VISIBLE), capped];
    if (row !== null) [all, where] = [matrix.ranked(row), " of this row"];
    else if (asked) [all, where] = [matrix.rankedRows(column), " of this column"];
    count.textContent = `${state.mass} %: ${lines.filter(asks).length} of ${all.length} lines${where}`;
  }

  left.onpoint = (row) => (row === null ? show(state.row, state.column) : show(row, null));
  right.onpoint = (column) => (column === null ? show(state.row, state.column) : show(null, column));
  draw();
  const redraw = new ResizeObserver(draw);
  redraw.observe(svg);
  return {
    mark(changes) {
      if ("mass" in changes) return draw();
      show(state.row, state.column);
      if (state.row !== null) say(rowSummary(matrix, state.row));
      else if (state.column !== null) say(columnSummary(matrix, state.column));
    },
    leave: () => redraw.disconnect(),
  };
}

/** Tokens one below the other; onpoint is called while the pointer is over one. */
function lineEnds(nodes, start, onpick) {
  const made = { onpoint: () => {} };
  made.items = nodes.map((node, index) =>
    element(
      "button",
      {
        type: "button",
        class: "line-end",
        onclick: () => onpick(index),
        onpointerenter: (event) => event.pointerType === "mouse" && made.onpoint(index),
      },
      node,
    ),
  );
  made.node = element("div", { class: "line-ends", onpointerleave: () => made.onpoint(null) }, made.items);
  roving(made.items, { start: start ?? 0, onmove: onpick });
  return made;
}

/** For each row the fewest cells that together carry the share. */
function strongest(matrix, share) {
  return matrix.rows.flatMap((_, row) => {
    const kept = [];
    let sum = 0;
    for (const column of matrix.ranked(row)) {
      if (sum >= share - 1e-4 || matrix.at(row, column) === 0) break;
      kept.push({ row, column, weight: matrix.at(row, column) });
      sum += matrix.at(row, column);
    }
    return kept;
  });
}
