// A sentence as text, each token a button: point at one, or move along it with the arrow keys.

class Sentence {
  /** onpoint(index or null): the pointer is over a token, or over none; onpick(index): it was chosen. */
  constructor(tokens, { label, onpoint, onpick, start = 0 }) {
    this.tokens = tokens;
    this.items = tokens.map((token, index) => this.item(token, index, { onpoint, onpick }));
    const words = Object.values(Object.groupBy(this.items, (_, index) => tokens[index].group));
    this.text = element("p", { class: "sentence" }, words.map((items) => element("span", { class: "word" }, items)));
    const name = element("p", { class: "label" }, label);
    this.node = element("section", { class: "side", "aria-label": label }, this.text, name);
    if (onpoint) this.text.addEventListener("pointerleave", () => onpoint(null));
    if (onpick) this.select = roving(this.items, { start, onmove: onpick });
  }

  item(token, index, { onpoint, onpick }) {
    const classes = ["token"];
    if (this.tokens[index - 1]?.group !== token.group) classes.push("opens");
    if (this.tokens[index + 1]?.group !== token.group) classes.push("closes");
    if (token.padding) classes.push("padding");
    if (!onpick) return element("span", { class: classes.join(" ") }, tokenNode(token));
    return element(
      "button",
      {
        type: "button",
        class: classes.join(" "),
        "aria-pressed": "false",
        title: token.id === undefined ? null : `id ${token.id}`,
        onpointerenter: (event) => event.pointerType === "mouse" && onpoint(index),
        onclick: () => onpick(index),
      },
      tokenNode(token),
    );
  }

  /** Colours each token by its weight; hiddenAt says why one has none. */
  shade(weightAt, hiddenAt = () => VISIBLE) {
    this.items.forEach((item, index) => {
      const hidden = hiddenAt(index);
      item.classList.toggle("later", hidden === LATER);
      const colour = hidden === VISIBLE ? colourOf(weightAt(index)) : null;
      item.style.setProperty("--shade", colour ? css(colour) : "transparent");
      item.style.setProperty("--on-shade", colour ? inkOn(colour) : "var(--soft)");
      item.classList.add("shaded");
    });
  }

  unshade() {
    for (const item of this.items) item.classList.remove("shaded", "later");
  }

  /** Marks one token as the one that is asked about. */
  mark(index) {
    this.items.forEach((item, at) => {
      item.classList.toggle("marked", at === index);
      if (item.tagName === "BUTTON") item.setAttribute("aria-pressed", String(at === index));
    });
  }
}

/** The largest of many weights as bars. entries: [label node, weight, note]. */
function ranking(title, entries) {
  const rows = entries.map(([label, weight, note]) =>
    element(
      "li",
      {},
      element("span", { class: "name" }, label),
      element("span", { class: "bar", "aria-hidden": "true" }, bar(weight)),
      element("span", { class: "number" }, decimals(weight)),
      note ? element("span", { class: "note" }, note) : null,
    ),
  );
  return element("div", { class: "ranking" }, element("h2", {}, title), element("ol", {}, rows));
}

function bar(weight) {
  return element("i", { style: { width: `${100 * weight}%` } });
}
