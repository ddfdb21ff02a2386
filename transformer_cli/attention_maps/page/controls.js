// The bar above the picture, and the keys that do the same.

const VIEW_NAMES = {
  sentences: "Sentences",
  matrix: "Matrix",
  grid: "All heads",
  lines: "Lines",
  steps: "Steps",
  heads: "Head table",
  table: "Numbers",
};

const KEYS = [
  ["1 \u2026 7", "the views, in their order"],
  ["b", "next block: encoder, decoder, cross"],
  ["[ ]", "layer before, layer after"],
  [", .", "head before, head after"],
  ["0", "the mean of all heads and layers"],
  ["w", "pieces or words"],
  ["n", "numbers in the matrix"],
  ["c", "colours up to 1, or up to the largest weight"],
  ["d", "light, dark or as the system"],
  ["arrows", "move inside a picture"],
  ["Esc", "let go of what is marked; close this"],
];

/** A group of radio buttons: one stop of the Tab key, arrows choose. options: value or [value, text, hint]. */
function choice(name, legend, options) {
  const labels = options.map((option) => {
    const [value, text = value, hint] = [option].flat();
    return element(
      "label",
      { title: hint },
      element("input", {
        type: "radio",
        name,
        value,
        checked: String(state[name]) === String(value),
        onchange: () => change({ [name]: value }),
      }),
      element("span", {}, text),
    );
  });
  return element("fieldset", { class: "choice" }, element("legend", {}, legend), ...labels);
}

function numbered(numbers) {
  return numbers.map((number) => number || [0, "mean"]);
}

function buildControls() {
  const views = CHOICES.view.map((view, index) => [view, VIEW_NAMES[view], `key ${index + 1}`]);
  byId("views").replaceChildren(choice("view", "View", views));
  buildSelectors();
  byId("theme").addEventListener("click", nextTheme);
  byId("help").addEventListener("click", () => byId("keys").showModal());
  byId("key-list").replaceChildren(
    ...KEYS.flatMap(([keys, effect]) => [element("dt", {}, element("kbd", {}, keys)), element("dd", {}, effect)]),
  );
  document.addEventListener("keydown", pressed);
  onChange(updateControls);
  updateControls(state);
}

/** Which selectors there are depends on the view; which layers and heads, on the block. */
function buildSelectors() {
  const { view, block, layer } = state;
  const focused = document.activeElement?.name;
  const made = {
    block: ["Block", KINDS],
    layer: ["Layer", numbered(layerChoices(block))],
    head: ["Head", numbered(headChoices(block, layer))],
    unit: ["Show", CHOICES.unit],
    // Attention that writes a word is not the attention that the word itself causes once it is read.
    word: ["Words when", [
      ["written", "written", "the row whose output is the word"],
      ["read", "read", "the row whose input is the word"],
    ]],
    scale: ["Colours up to", [["one", "1"], "largest"]],
    numbers: ["Numbers", CHOICES.numbers],
  };
  const parts = OFFERED[view].filter((name) => made[name][1].length > 1 && (name !== "word" || block === "cross"));
  byId("selectors").replaceChildren(...parts.map((name) => choice(name, ...made[name])));
  if (focused) byId("selectors").querySelector(`input[name="${focused}"]:checked`)?.focus();
}

function updateControls(changes) {
  if (["view", "block", "layer"].some((name) => name in changes)) buildSelectors();
  for (const input of document.querySelectorAll("#controls input[type=radio]"))
    input.checked = input.value === String(state[input.name]);
  byId("theme").textContent = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" }[state.theme];
}

function nextTheme() {
  change({ theme: after(CHOICES.theme, state.theme, 1) });
}

/** The neighbour in a list, around its ends. */
function after(list, value, step) {
  return list[(list.indexOf(value) + step + list.length) % list.length];
}

/** Does what a click on the next selector does, and nothing where there is none. */
function turn(name, step) {
  const inputs = [...document.querySelectorAll(`#selectors input[name=${name}]`)];
  after(inputs, inputs.find((input) => input.checked), step)?.click();
}

const SHORTCUTS = {
  b: () => turn("block", 1),
  "[": () => turn("layer", -1),
  "]": () => turn("layer", 1),
  ",": () => turn("head", -1),
  ".": () => turn("head", 1),
  0: () => change({ layer: 0, head: 0 }),
  w: () => turn("unit", 1),
  n: () => turn("numbers", 1),
  c: () => turn("scale", 1),
  d: nextTheme,
  "?": () => byId("keys").showModal(),
  Escape: () => change({ row: null, column: null }),
};

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  const view = CHOICES.view[Number(event.key) - 1];
  const before = address();
  if (view) change({ view });
  else if (SHORTCUTS[event.key]) SHORTCUTS[event.key]();
  else return;
  event.preventDefault();
  if (view || event.key === "0") focusView();
  if (address() !== before && event.key !== "Escape") say(`${VIEW_NAMES[state.view]}: ${blockText()}.`);
}

function focusView(options) {
  byId("view").querySelector("[data-start]")?.focus(options);
}
