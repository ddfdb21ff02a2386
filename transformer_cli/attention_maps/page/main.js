// Puts the page together and keeps the picture in step with what was chosen.

const DRAW = {
  sentences: sentencesView,
  matrix: matrixView,
  grid: gridView,
  lines: linesView,
  steps: stepsView,
  heads: headsView,
  table: tableView,
};
/** Changes that a view follows without being drawn again. */
const MARKS = ["row", "column", "step", "mass"];

let shown = {};

function draw() {
  const root = byId("view");
  const hadFocus = root.contains(document.activeElement);
  shown.leave?.();
  root.dataset.view = state.view;
  shown = DRAW[state.view](root);
  if (hadFocus) focusView({ preventScroll: true });
}

function follow(changes) {
  const names = Object.keys(changes);
  if ("theme" in changes) wearTheme();
  if (names.every((name) => MARKS.includes(name)) && shown.mark) shown.mark(changes);
  else draw();
}

function wearTheme() {
  if (state.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = state.theme;
  followTheme();
}

function describe() {
  const score = maps.score === null ? "" : `, score ${maps.score.toFixed(3)}`;
  const origin = maps.origin === "forced" ? "translation given" : `found by ${maps.origin}`;
  const padding = maps.source.padding ? `, ${maps.source.padding} of them padding` : "";
  const sizes = `${maps.source.pieces.length} source pieces${padding}, ${maps.steps.length} target steps`;
  byId("about").textContent = `${maps.model} \u00b7 ${origin}${score} \u00b7 ${sizes}`;
}

let width = 0;

/** Pictures are made for a width; heights change without end while scrolling on a phone. */
function resized() {
  if (document.documentElement.clientWidth !== width) draw();
  width = document.documentElement.clientWidth;
}

readAddress(location.href);
wearTheme();
describe();
byId("tools").hidden = false;
buildControls();
onChange(follow);
width = document.documentElement.clientWidth;
draw();
// By then, the address may have been written over by a late reminder of what was seen before.
addEventListener("hashchange", (event) => readAddress(event.newURL));
addEventListener("pagehide", writeAddress);
addEventListener("resize", resized);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  followTheme();
  draw();
});
performance.mark("ready");
