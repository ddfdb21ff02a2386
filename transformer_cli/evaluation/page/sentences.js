// All sentences of a test: searched, sorted, a part of them at a time.

const STEP = 50;
const ORDERS = { line: "line", chrF: "chrF", words: "words" };

class Sentences {
  constructor(test, root, parts) {
    this.test = test;
    this.lines = test.translation.map((_, line) => line);
    this.texts = this.lines.map((line) => folded(this.sides(line).map(([, text]) => text).join("\n")));
    this.words = test.words;
    this.order = "chrF";
    this.rising = true;
    this.search = element("input", {
      type: "search",
      dir: "auto",
      placeholder: "Search",
      "aria-label": "Search sentences",
      oninput: () => this.choose(),
    });
    this.part = element(
      "select",
      { "aria-label": "Which sentences", onchange: () => this.choose() },
      element("option", { value: "" }, "all sentences"),
      Object.entries(test.parts).map(([name, lines]) =>
        element("option", { value: name }, `${name} (${lines.length.toLocaleString("en")})`),
      ),
    );
    this.readout = element("p", { class: "readout", role: "status" });
    this.heads = Object.keys(ORDERS).map((name) => this.head(name));
    this.body = element("tbody");
    this.more = element("button", { type: "button", class: "more", onclick: () => this.show(this.shown + STEP) });
    root.append(
      element("div", { class: "choices" }, this.search, this.part, this.readout),
      element(
        "table",
        { class: "lines" },
        element("thead", {}, element("tr", {}, this.heads, element("th", { scope: "col" }, "text"))),
        this.body,
      ),
      this.more,
    );
    for (const row of parts?.tBodies[0].rows ?? []) this.link(row.cells[0]);
    this.choose();
  }

  /** A part's name in the table of parts shows its sentences. */
  link(cell) {
    const name = cell.textContent;
    const open = () => {
      this.part.value = name;
      this.choose();
      this.part.scrollIntoView({ block: "start" });
      this.part.focus({ preventScroll: true });
    };
    cell.replaceChildren(element("button", { type: "button", onclick: open, title: "Show these sentences" }, name));
  }

  head(name) {
    const sort = () => {
      this.rising = this.order === name ? !this.rising : true;
      this.order = name;
      this.choose();
    };
    return element("th", { scope: "col" }, element("button", { type: "button", onclick: sort }, ORDERS[name]));
  }

  sides(line) {
    const { source, references, translation } = this.test;
    const several = references.length > 1;
    return [
      ...(source ? [["source", source[line]]] : []),
      ...references.map((reference, n) => [several ? `reference ${n + 1}` : "reference", reference[line]]),
      ["translation", translation[line]],
    ];
  }

  choose() {
    const wanted = folded(this.search.value.trim());
    const among = this.part.value ? this.test.parts[this.part.value] : this.lines;
    const key = { line: (line) => line, chrF: (line) => this.test.scores[line], words: (line) => this.words[line] };
    const by = key[this.order];
    const sign = this.rising ? 1 : -1;
    this.found = among.filter((line) => this.texts[line].includes(wanted));
    this.found.sort((one, other) => sign * (by(one) - by(other)) || one - other);
    const all = this.lines.length.toLocaleString("en");
    const n = this.found.length.toLocaleString("en");
    this.readout.textContent = this.found.length === this.lines.length ? `${all} sentences` : `${n} of ${all} sentences`;
    this.heads.forEach((head, n) => {
      if (Object.keys(ORDERS)[n] === this.order) head.ariaSort = this.rising ? "ascending" : "descending";
      else head.removeAttribute("aria-sort");
    });
    this.body.replaceChildren();
    this.shown = 0;
    this.show(STEP);
  }

  show(n) {
    this.body.append(...this.found.slice(this.shown, n).map((line) => this.row(line)));
    this.shown = Math.min(n, this.found.length);
    const left = this.found.length - this.shown;
    this.more.hidden = !left;
    this.more.textContent = `Show ${Math.min(STEP, left)} more of ${left.toLocaleString("en")}`;
  }

  row(line) {
    const { test } = this;
    const compared = differences(test.references[0][line], test.translation[line]);
    const [sourceLanguage, targetLanguage] = test.languages;
    let reference = 0;
    const texts = this.sides(line).map(([side, text]) => {
      const isFirst = side.startsWith("reference") && reference++ === 0;
      const runs = compared && (isFirst ? compared[0] : side === "translation" ? compared[1] : null);
      const shown = runs ? marked(runs, isFirst ? "del" : "ins") : text;
      const lang = (side === "source" ? sourceLanguage : targetLanguage) || null;
      const empty = text.trim() === "";
      return element(
        "div",
        { class: side.split(" ")[0] },
        element("dt", {}, side),
        element("dd", { dir: "auto", lang, class: empty && "empty" }, empty ? "no text" : shown),
      );
    });
    const flags = (test.flags?.[line] ?? []).map((flag) => element("span", { class: "flag" }, flag));
    const score = test.scores[line];
    return element(
      "tr",
      {},
      element("td", { class: "number" }, (line + 1).toLocaleString("en")),
      element("td", { class: "number score" }, score.toFixed(1), bar(score)),
      element("td", { class: "number words" }, String(this.words[line])),
      element("td", { class: "text" }, element("dl", {}, texts), flags.length > 0 && element("p", {}, flags)),
    );
  }
}

function bar(score) {
  return element("span", { class: "bar", "aria-hidden": "true" }, element("i", { style: { width: `${score}%` } }));
}

function marked(runs, tag) {
  return runs.map(([text, isShared]) => (isShared ? text : element(tag, {}, text)));
}

function folded(text) {
  return text.normalize("NFC").toLowerCase();
}
