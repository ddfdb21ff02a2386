// A matrix on a canvas: one square per cell, hatched where a key is hidden, with numbers where they fit.

const GAP_FROM = 9;
const NUMBERS_FROM = 30;

/** Draws with cells of `cell` CSS pixels; most is the weight that gets the last colour. */
function drawHeatMap(canvas, matrix, { cell, most = 1, numbers = false }) {
  const [nRows, nColumns] = [matrix.rows.length, matrix.columns.length];
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(nColumns * cell * ratio));
  canvas.height = Math.max(1, Math.round(nRows * cell * ratio));
  canvas.style.width = `${nColumns * cell}px`;
  canvas.style.height = `${nRows * cell}px`;
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.drawImage(pixels(matrix, most), 0, 0, canvas.width, canvas.height);
  pen.scale(ratio, ratio);
  hatch(pen, matrix, cell);
  if (cell >= GAP_FROM) grid(pen, nRows, nColumns, cell);
  if (numbers && cell >= NUMBERS_FROM) write(pen, matrix, cell, most);
}

/** One pixel per cell; hidden cells stay transparent. */
function pixels(matrix, most) {
  const image = new ImageData(matrix.columns.length, matrix.rows.length);
  for (let index = 0; index < matrix.values.length; index++)
    if (matrix.hidden[index] === VISIBLE) image.data.set([...colourOf(matrix.values[index], most), 255], 4 * index);
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function hatch(pen, matrix, cell) {
  for (const kind of [LATER, PADDING]) {
    pen.fillStyle = hatchPattern(pen, kind);
    for (let row = 0; row < matrix.rows.length; row++)
      for (let from = 0, column = 0; column <= matrix.columns.length; column++) {
        const ends = column === matrix.columns.length || matrix.hiddenAt(row, column) !== kind;
        if (ends && column > from) pen.fillRect(from * cell, row * cell, (column - from) * cell, cell);
        if (ends) from = column + 1;
      }
  }
}

/** Later positions get lines that rise, padding gets crossed lines. */
function hatchPattern(pen, kind) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const brush = tile.getContext("2d");
  brush.strokeStyle = themed("--hatch");
  brush.lineWidth = 1;
  brush.beginPath();
  for (const x of [-6, 0, 6]) {
    brush.moveTo(x, 6);
    brush.lineTo(x + 6, 0);
    if (kind === PADDING) {
      brush.moveTo(x, 0);
      brush.lineTo(x + 6, 6);
    }
  }
  brush.stroke();
  return pen.createPattern(tile, "repeat");
}

function grid(pen, nRows, nColumns, cell) {
  pen.fillStyle = themed("--paper");
  for (let column = 1; column < nColumns; column++) pen.fillRect(column * cell - 0.5, 0, 1, nRows * cell);
  for (let row = 1; row < nRows; row++) pen.fillRect(0, row * cell - 0.5, nColumns * cell, 1);
}

function write(pen, matrix, cell, most) {
  pen.font = `${Math.min(13, cell * 0.34)}px ${themed("--font")}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (let row = 0; row < matrix.rows.length; row++)
    for (let column = 0; column < matrix.columns.length; column++) {
      if (matrix.hiddenAt(row, column) !== VISIBLE) continue;
      const value = matrix.at(row, column);
      pen.fillStyle = inkOn(colourOf(value, most));
      pen.fillText(short(value), (column + 0.5) * cell, (row + 0.5) * cell + 0.5);
    }
}

/** Two decimals without the leading zero, as there is little room in a cell; nothing for next to nothing. */
function short(value) {
  if (value >= 0.995) return "1";
  return value < 0.005 ? "" : value.toFixed(2).slice(1);
}
