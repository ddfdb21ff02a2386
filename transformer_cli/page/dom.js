// Elements made from text, never from markup: whatever a token holds stays text.

const SVG = "http://www.w3.org/2000/svg";

/** element("button", {onclick: f, style: {left: "3px"}}, "text", child); null and false leave an attribute out. */
function element(tag, attributes = {}, ...children) {
  return dressed(document.createElement(tag), attributes, children);
}

function drawing(tag, attributes = {}, ...children) {
  return dressed(document.createElementNS(SVG, tag), attributes, children);
}

function dressed(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    // The security policy refuses style attributes; properties set one by one are fine.
    else if (name === "style") for (const [key, part] of Object.entries(value)) node.style.setProperty(key, part);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== false));
  return node;
}

function byId(id) {
  return document.getElementById(id);
}

/** Makes of many elements one stop of the Tab key, in which the arrow keys move; returns select(index). */
function roving(items, { start = 0, columns = 1, leftward = false, onmove }) {
  let current = Math.min(Math.max(start, 0), items.length - 1);
  items.forEach((item, index) => (item.tabIndex = index === current ? 0 : -1));
  function select(index, { focus = false } = {}) {
    items[current].tabIndex = -1;
    current = index;
    items[current].tabIndex = 0;
    if (focus) items[current].focus();
  }
  const right = leftward ? -1 : 1;
  const steps = { ArrowLeft: -right, ArrowRight: right, ArrowUp: -columns, ArrowDown: columns };
  items.forEach((item) =>
    item.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      let next = current + (steps[event.key] ?? NaN);
      if (event.key === "Home") next = 0;
      if (event.key === "End") next = items.length - 1;
      if (Number.isNaN(next)) return;
      event.preventDefault();
      if (next < 0 || next >= items.length) return;
      select(next, { focus: true });
      onmove(next);
    }),
  );
  return select;
}
