// A sentence as text, each token a button: point at one, or move along it with the arrow keys.

// All letters of these blocks are written from right to left, and no others.
const LEFTWARD = /(?=\p{L})[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

class Sentence {
  /** onpoint(index or null): the pointer is over a token, or over none; onpick(index): it was chosen. */
  constructor(tokens, { label, onpoint, onpick, start = 0 }) {
    this.tokens = tokens;
    const text = textOf(tokens);
    this.flows = LEFTWARD.test(text);
    const leftward = LEFTWARD.test(text.match(/\p{L}/u)?.[0] ?? "");
    this.items = tokens.map((token, index) => this.item(token, index, { onpoint, onpick }));
    const words = Object.values(Object.groupBy(tokens.keys(), (index) => tokens[index].group));
    const classes = this.flows ? "sentence flowing" : "sentence";
    this.text = element("p", { class: classes }, words.map((places) => this.word(places)));
    const name = element("p", { class: "label" }, label);
    const dir = leftward ? "rtl" : null;
    this.node = element("section", { class: "side", "aria-label": label, dir }, this.text, name);
    if (onpoint) this.text.addEventListener("pointerleave", () => onpoint(null));
    if (onpick) this.select = roving(this.items, { start, leftward, onmove: onpick });
  }

  /** Where letters run to the left words are text, of which a browser knows the order; elsewhere each is a box. */
  word(places) {
    const items = places.map((index) => this.items[index]);
    if (!this.flows) return element("span", { class: "word" }, items);
    const direction = LEFTWARD.test(textOf(places.map((index) => this.tokens[index]))) ? "rtl" : "ltr";
    return [element("span", { class: "word", style: { direction } }, items), " "];
  }

  item(token, index, { onpoint, onpick }) {
    const classes = ["token"];
    if (this.tokens[index - 1]?.group !== token.group) classes.push("opens");
    if (this.tokens[index + 1]?.group !== token.group) classes.push("closes");
    if (token.padding) classes.push("padding");
    const node = tokenNode(token, { flows: this.flows });
    if (!onpick) return element("span", { class: classes.join(" ") }, node);
    return element(
      this.flows ? "span" : "button", // letters join in text, and a button is a box
      {
        ...(this.flows ? { role: "button", onkeydown: clicked } : { type: "button" }),
        class: classes.join(" "),
        "aria-pressed": "false",
        title: token.id === undefined ? null : `id ${token.id}`,
        onpointerenter: (event) => event.pointerType === "mouse" && onpoint(index),
        onclick: () => onpick(index),
      },
      node,
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
      if (item.hasAttribute("aria-pressed")) item.setAttribute("aria-pressed", String(at === index));
    });
  }
}

function textOf(tokens) {
  return tokens.map((token) => (token.special ? "" : token.text)).join("");
}

/** What a button does by itself. */
function clicked(event) {
  if (event.key !== "Enter" && event.key !== " ") return;
  event.preventDefault();
  event.currentTarget.click();
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
