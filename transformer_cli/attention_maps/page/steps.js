// The translation again, one piece at a time: what is read, where it looks, what could come next.

const STEP_MS = 1400;

function stepsView(root) {
  const { rows, columns } = axesOf("cross", "pieces");
  const last = rows.length - 1;
  const title = element("p", { class: "readout" });
  const source = new Sentence(columns, { label: "Source" });
  const read = new Sentence(
    rows.map((row) => row.reads),
    { label: "Translation so far" },
  );
  const next = element("div", { class: "below" });
  const slider = element("input", {
    type: "range",
    min: 0,
    max: last,
    value: state.step,
    "aria-label": "Step of the translation",
    "data-start": true,
    oninput: () => change({ step: Number(slider.value) }),
  });
  const move = (by) => change({ step: Math.min(Math.max(state.step + by, 0), last) });
  const button = (onclick, label, sign) => element("button", { type: "button", onclick, "aria-label": label }, sign);
  const before = button(() => move(-1), "Step before", "\u2190");
  const behind = button(() => move(1), "Next step", "\u2192");
  const play = element("button", { type: "button", class: "play", onclick: toggle }, "Play");
  let timer = null;
  root.replaceChildren(
    element("div", { class: "slider" }, before, slider, behind, play),
    title,
    element("div", { class: "stage" }, source.node, read.node),
    next,
  );

  function toggle() {
    if (timer) return stop();
    if (state.step === last) change({ step: 0 });
    timer = setInterval(() => (state.step === last ? stop() : move(1)), STEP_MS);
    play.textContent = "Stop";
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  function show() {
    const step = state.step;
    slider.value = step;
    slider.setAttribute("aria-valuetext", `step ${step + 1}: ${rowText(rows[step])}`);
    before.disabled = step === 0;
    behind.disabled = step === last;
    const { reads, writes } = rows[step];
    title.replaceChildren(`Step ${step + 1} of ${last + 1}: reads `, tokenNode(reads), ", writes ", tokenNode(writes));
    shadeRow(source, "cross", step);
    shadeRow(read, "decoder", step);
    read.items.forEach((item, index) => (item.hidden = index > step));
    read.mark(step);
    next.replaceChildren(likeliest(step));
  }

  show();
  return {
    mark() {
      show();
      say(`Step ${state.step + 1}: ${rowText(rows[state.step])}. ${spokenNext(state.step)}`);
    },
    leave: stop,
  };
}

/** Colours a sentence by one row of the layer and head that are chosen, where that block has them. */
function shadeRow(sentence, kind, row) {
  if (!KINDS.includes(kind)) return;
  const layer = layersOf(kind).includes(state.layer) ? state.layer : 0;
  const head = headsOf(kind, layer).includes(state.head) ? state.head : 0;
  const matrix = matrixOf(kind, layer, head, "pieces");
  sentence.shade(
    (index) => matrix.at(row, index),
    (index) => matrix.hiddenAt(row, index),
  );
}

/** The five likeliest next pieces, and the one that came where it is not among them. */
function likeliest(step) {
  const { best, probability } = maps.steps[step];
  const came = TOKENS.target.pieces[step + 1];
  const all = best.some(([text]) => text === came.text) ? best : [...best, [came.text, probability]];
  const entries = all.map(([text, chance]) => [tokenNode(pieceNamed(text)), chance, text === came.text && "written"]);
  return ranking("Likeliest next pieces", entries);
}

function pieceNamed(text) {
  return { text, special: ["<s>", "</s>", "<pad>"].includes(text) };
}

function spokenNext(step) {
  const named = maps.steps[step].best.map(([text, chance]) => `${plain(pieceNamed(text))} ${chance.toFixed(2)}`);
  return `Likeliest next: ${named.join(", ")}.`;
}
