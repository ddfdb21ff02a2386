// One matrix with its labels and numbers; the arrow keys move from cell to cell.

const CELL = { least: 15, most: 46 };
/** What a printed page has room for, beside what else is on it. */
const PAPER = { width: 680, height: 500 };

function matrixView(root) {
  const matrix = shownMatrix();
  const most = mostShown(matrix);
  const numbers = state.numbers === "on";
  const [nRows, nColumns] = [matrix.rows.length, matrix.columns.length];
  const canvas = element("canvas", { "aria-hidden": "true" });
  const cursor = element("div", { class: "cursor" });
  const columnLabels = matrix.columns.map((token) => element("span", {}, tokenNode(token, { mark: true })));
  const rowLabels = matrix.rows.map((row) => element("span", {}, rowNode(row, { mark: true })));
  const top = element("div", { class: "top-labels", "aria-hidden": "true" }, columnLabels);
  const left = element("div", { class: "left-labels", "aria-hidden": "true" }, rowLabels);
  const field = element(
    "div",
    {
      class: "field",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": matrixText(matrix) + " The arrow keys move.",
      "data-start": true,
    },
    canvas,
    cursor,
  );
  const scroller = element("div", { class: "scroller" }, element("div", { class: "corner" }), top, left, field);
  const readout = element("p", { class: "readout" });
  const below = element("div", { class: "below" });
  root.replaceChildren(readout, scroller, legend(most === 1 ? "1" : decimals(most)), below);

  const longest = Math.max(...columnLabels.map((label) => label.firstChild.offsetWidth));
  const [beside, above] = [Math.ceil(longest * 0.5), Math.ceil(longest * 0.87 + 18)];
  const taken = left.offsetWidth + beside;
  // As large as the width allows, but never too small to be pointed at: then the matrix scrolls.
  const room = (root.clientWidth - taken) / nColumns;
  const cell = Math.floor(Math.min(Math.max(room, CELL.least), CELL.most));
  const fit = Math.min(1, PAPER.width / (taken + nColumns * cell), PAPER.height / (above + nRows * cell));
  const sizes = { cell: `${cell}px`, top: `${above}px`, beside: `${beside}px`, fit };
  for (const [name, value] of Object.entries(sizes)) scroller.style.setProperty(`--${name}`, value);
  drawHeatMap(canvas, matrix, { cell, most, numbers });

  function show(row, column) {
    const there = row !== null && column !== null;
    cursor.hidden = !there;
    rowLabels.forEach((label, index) => label.classList.toggle("marked", index === row));
    columnLabels.forEach((label, index) => label.classList.toggle("marked", index === column));
    if (!there) {
      readout.textContent = "A row is a query, a column a key. Point at a cell, or use the arrow keys.";
      below.replaceChildren();
      return;
    }
    cursor.style.setProperty("transform", `translate(${column * cell}px, ${row * cell}px)`);
    readout.textContent = cellText(matrix, row, column);
    below.replaceChildren(keysOfRow(matrix, row));
  }

  function cellAt(event) {
    const box = canvas.getBoundingClientRect();
    const within = (value, length) => Math.min(Math.max(Math.floor(value / cell), 0), length - 1);
    return [within(event.clientY - box.top, nRows), within(event.clientX - box.left, nColumns)];
  }

  canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && show(...cellAt(event)));
  canvas.addEventListener("pointerleave", () => show(state.row, state.column));
  canvas.addEventListener("click", (event) => {
    const [row, column] = cellAt(event);
    change({ row, column });
  });
  field.addEventListener("keydown", (event) => {
    const next = moved(event.key, nRows, nColumns);
    if (!next || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    change({ row: next[0], column: next[1] });
    cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  show(state.row, state.column);
  return {
    mark() {
      show(state.row, state.column);
      if (state.row !== null && state.column !== null) say(cellText(matrix, state.row, state.column));
    },
  };
}

function moved(key, nRows, nColumns) {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  if (key === "Home") return [state.row ?? 0, 0];
  if (key === "End") return [state.row ?? 0, nColumns - 1];
  if (!(key in steps)) return null;
  if (state.row === null || state.column === null) return [0, 0];
  const [down, right] = steps[key];
  return [
    Math.min(Math.max(state.row + down, 0), nRows - 1),
    Math.min(Math.max(state.column + right, 0), nColumns - 1),
  ];
}

/** What the colours and hatchings mean. */
function legend(top) {
  const strip = element("canvas", { width: 256, height: 1, class: "strip", "aria-hidden": "true" });
  const pen = strip.getContext("2d");
  for (let x = 0; x < 256; x++) {
    pen.fillStyle = css(colourOf(x / 255));
    pen.fillRect(x, 0, 1, 1);
  }
  const parts = [element("span", { class: "ramp" }, "0", strip, top)];
  if (state.block === "decoder") parts.push(swatch("later", "hidden: comes later"));
  else if (maps.source.padding) parts.push(swatch("padding", "hidden: padding"));
  return element("div", { class: "legend" }, parts);
}

function swatch(kind, text) {
  return element("span", {}, element("i", { class: `swatch ${kind}` }), text);
}
