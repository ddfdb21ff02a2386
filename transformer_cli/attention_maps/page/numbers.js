// The matrix as a table of numbers, for eyes and screen readers alike.

function tableView(root) {
  const matrix = shownMatrix();
  const titles = matrix.columns.map((token) => element("th", { scope: "col" }, tokenNode(token, { mark: true })));
  const rows = matrix.rows.map((row, at) => {
    const cells = matrix.columns.map((_, column) => {
      const hidden = matrix.hiddenAt(at, column);
      if (hidden) return element("td", { class: "hidden" }, hidden === LATER ? "later" : "padding");
      return element("td", {}, decimals(matrix.at(at, column)));
    });
    return element("tr", {}, element("th", { scope: "row" }, rowNode(row, { mark: true })), cells);
  });
  root.replaceChildren(
    element(
      "div",
      { class: "wide", tabindex: "0", role: "region", "aria-label": "Table of weights", "data-start": true },
      element(
        "table",
        { class: "numbers" },
        element("caption", {}, `${blockText()}. Each row sums to 1.`),
        element("thead", {}, element("tr", {}, element("td", {}), titles)),
        element("tbody", {}, rows),
      ),
    ),
  );
  return {};
}
