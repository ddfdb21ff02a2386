// All heads of all layers, small: layers down, heads across.

function gridView(root) {
  const layers = layersOf(state.block);
  const heads = headChoices(state.block, 0);
  const items = [];
  const sections = layers.map((layer) => {
    const there = heads.filter((head) => head === 0 || headsOf(state.block, layer).includes(head));
    const cells = there.map((head) => thumbnail(layer, head));
    items.push(...cells);
    const title = element("h2", {}, `Layer ${layer}`);
    return element("section", { class: "layer" }, title, element("div", { class: "thumbnails" }, cells));
  });
  const fits = root.clientWidth / heads.length >= 84;
  const columns = fits ? `repeat(${heads.length}, minmax(0, 190px))` : "repeat(auto-fill, minmax(84px, 1fr))";
  const top = state.scale === "one" ? "1" : "the largest of each";
  root.replaceChildren(element("div", { class: "grid", style: { "--thumbnails": columns } }, sections), legend(top));
  const isShown = ({ dataset }) => Number(dataset.layer) === state.layer && Number(dataset.head) === state.head;
  const start = Math.max(0, items.findIndex(isShown));
  items[start].dataset.start = "";
  roving(items, { start, columns: heads.length, onmove: (index) => say(items[index].getAttribute("aria-label")) });
  const width = items[0].clientWidth - 12;
  for (const item of items) {
    const matrix = matrixOf(state.block, Number(item.dataset.layer), Number(item.dataset.head), state.unit);
    const cell = width / Math.max(matrix.rows.length, matrix.columns.length);
    drawHeatMap(item.querySelector("canvas"), matrix, { cell, most: mostShown(matrix) });
  }
  return {};
}

function thumbnail(layer, head) {
  const about = summaryOf(state.block, layer, head);
  const name = head ? `head ${head}` : "mean";
  const tags = about?.tags.join(" ") ?? "";
  const label = [`${name} ${tags}`.trim(), `layer ${layer}`, about && `entropy ${about.entropy.toFixed(2)}`];
  return element(
    "button",
    {
      type: "button",
      class: "thumbnail",
      "data-layer": layer,
      "data-head": head,
      "aria-label": label.filter(Boolean).join(", "),
      onclick: () => change({ view: "matrix", layer, head }),
    },
    element("canvas", { "aria-hidden": "true" }),
    element("span", { class: "caption" }, name, " ", element("em", {}, tags)),
  );
}
