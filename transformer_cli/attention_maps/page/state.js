// What is being looked at. The address remembers it, so a link, a reload or the back button shows the same.

/** The views, and the selectors of each. */
const OFFERED = {
  sentences: ["block", "layer", "head", "unit", "word"],
  matrix: ["block", "layer", "head", "unit", "scale", "numbers"],
  grid: ["block", "unit", "scale"],
  lines: ["block", "layer", "head", "unit"],
  steps: KINDS.at(-1) === "encoder" ? [] : ["layer", "head"],
  heads: ["block"],
  table: ["block", "layer", "head", "unit"],
};
const CHOICES = {
  view: Object.keys(OFFERED),
  block: KINDS,
  unit: ["pieces", "words"],
  word: ["written", "read"],
  numbers: ["on", "off"],
  scale: ["one", "largest"],
  theme: ["auto", "light", "dark"],
};

const DEFAULTS = {
  view: "sentences",
  block: KINDS.at(-1),
  layer: maps.layer,
  head: 0,
  unit: maps.unit,
  row: null,
  column: null,
  word: "written",
  mass: 90,
  step: 0,
  numbers: "on",
  scale: "one",
  sort: "",
  theme: "auto",
};

const state = { ...DEFAULTS };
const listeners = [];

/** listener(changes): called after each change with what is new. */
function onChange(listener) {
  listeners.push(listener);
}

function change(wanted) {
  const before = { ...state };
  if ((wanted.view ?? state.view) === "steps") wanted = { ...wanted, block: DEFAULTS.block };
  // In another block or unit, the same numbers mean other rows and columns.
  const others = "unit" in wanted || (wanted.block ?? state.block) !== state.block;
  if (others) wanted = { row: null, column: null, ...wanted };
  Object.assign(state, wanted);
  repair();
  const changes = Object.fromEntries(Object.entries(state).filter(([name, value]) => value !== before[name]));
  if (!Object.keys(changes).length) return;
  remember();
  for (const listener of listeners) listener(changes);
}

// Browsers refuse an address that changes too often, as it would while an arrow key is held down. A reload takes the
// address as it is, before any event: so the first few changes are written at once.
const ADDRESS_PAUSE_MS = 400;
let rememberedAt = 0;
let reminder = null;

function remember() {
  clearTimeout(reminder);
  const rest = rememberedAt + ADDRESS_PAUSE_MS - Date.now();
  if (rest > 0) reminder = setTimeout(writeAddress, rest);
  else writeAddress();
}

function writeAddress() {
  rememberedAt = Math.max(rememberedAt + ADDRESS_PAUSE_MS, Date.now() - 20 * ADDRESS_PAUSE_MS);
  // The frame of a notebook has no address of its own, and a browser refuses to change its.
  if (location.protocol !== "about:") history.replaceState(null, "", "#" + address());
}

/** Whatever an address may say, the state is one that can be drawn. */
function repair() {
  const among = (name, allowed, otherwise = allowed[0]) => allowed.includes(state[name]) || (state[name] = otherwise);
  for (const [name, allowed] of Object.entries(CHOICES)) among(name, allowed, DEFAULTS[name]);
  among("sort", ["", ...COLUMNS.flatMap(([name]) => [name, `-${name}`])]);
  const layers = layerChoices(state.block);
  among("layer", layers, layers.includes(DEFAULTS.layer) ? DEFAULTS.layer : layers[0]);
  among("head", headChoices(state.block, state.layer));
  const { rows, columns } = axesOf(state.block, state.unit);
  const within = (value, length) => (Number.isInteger(value) && value >= 0 && value < length ? value : null);
  state.row = within(state.row, rows.length);
  state.column = within(state.column, columns.length);
  state.step = within(state.step, maps.steps.length) ?? 0;
  state.mass = Math.min(Math.max(Number.isInteger(state.mass) ? state.mass : DEFAULTS.mass, 50), 100);
}

/** What differs from the defaults, as name=value. */
function address() {
  const parts = Object.entries(state).filter(([name, value]) => value !== DEFAULTS[name]);
  return new URLSearchParams(parts).toString();
}

function readAddress(url) {
  const wanted = { ...DEFAULTS };
  for (const [name, text] of new URLSearchParams(new URL(url).hash.slice(1)))
    if (Object.hasOwn(DEFAULTS, name)) wanted[name] = /^\d{1,6}$/.test(text) ? Number(text) : text;
  change(wanted);
}

function shownMatrix(by) {
  return matrixOf(state.block, state.layer, state.head, state.unit, by);
}

/** The weight that gets the last colour of the scale. */
function mostShown(matrix) {
  return state.scale === "one" ? 1 : matrix.largest();
}
