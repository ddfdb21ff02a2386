// A table of the heads of a block: how widely each looks, and what it seems to be for.

const COLUMNS = [
  ["layer", "Layer", "", (head) => String(head.layer)],
  ["head", "Head", "", (head) => String(head.head)],
  ["entropy", "Entropy", "0: one key gets all; 1: all visible keys get the same", share("entropy")],
  ["confidence", "Confidence", "mean of each row's largest weight", share("confidence")],
  ["marks", "On marks", "weight given to <s>, </s> and the like", share("marks")],
  ["distance", "Distance", "mean number of pieces between a query and its keys", (head) => head.distance.toFixed(1)],
  ["one_to_one", "One to one", "share of target pieces and source pieces that choose each other", share("one_to_one")],
  ["tags", "Seems to be", "", (head) => head.tags.join(", ") || "\u2013"],
];

function share(name) {
  return (head) => [element("span", { class: "bar", "aria-hidden": "true" }, bar(head[name])), head[name].toFixed(2)];
}

function summaryOf(kind, layer, head) {
  return maps.heads.find((about) => about.kind === kind && about.layer === layer && about.head === head);
}

function headsView(root) {
  const heads = maps.heads.filter((about) => about.kind === state.block);
  const columns = COLUMNS.filter(([key]) => heads.some((head) => head[key] !== null));
  const sign = state.sort.startsWith("-") ? -1 : 1;
  const [name] = columns.find(([key]) => key === state.sort.replace("-", "")) ?? columns[0];
  const valueOf = (head) => (name === "tags" ? head.tags.join() || "\uffff" : head[name]);
  const compared = (a, b) => (a > b) - (a < b);
  heads.sort((a, b) => sign * compared(valueOf(a), valueOf(b)) || a.layer - b.layer || a.head - b.head);
  const titles = columns.map(([key, title, hint]) => {
    const sorted = key === name ? (sign === 1 ? "ascending" : "descending") : null;
    const arrow = { ascending: " \u2191", descending: " \u2193" }[sorted] ?? "";
    const onclick = () => change({ sort: key === name && sign === 1 ? `-${key}` : key });
    const attributes = { type: "button", title: hint, onclick, "data-start": sorted !== null };
    const button = element("button", attributes, title + arrow);
    return element("th", { scope: "col", "aria-sort": sorted }, button);
  });
  const rows = heads.map((head) =>
    element(
      "tr",
      {},
      columns.map(([key, , , cell]) => element("td", { class: key }, key === "head" ? opener(head) : cell(head))),
    ),
  );
  root.replaceChildren(
    element(
      "div",
      { class: "wide" },
      element(
        "table",
        { class: "heads" },
        element("caption", {}, `Heads of the ${BLOCK_NAMES[state.block]}`),
        element("thead", {}, element("tr", {}, titles)),
        element("tbody", {}, rows),
      ),
    ),
  );
  return {};
}

function opener({ layer, head }) {
  const onclick = () => change({ view: "matrix", layer, head });
  const label = `head ${head} of layer ${layer}: show its matrix`;
  return element("button", { type: "button", class: "open", onclick, "aria-label": label }, String(head));
}
