// Type, translate, choose among the alternatives, and see where each looks.

/** What a flag of a translation means; of the others the name says it. */
const FLAGS = {
  looped: "repeats itself",
  copied: "mostly copied from the source",
  short: "much shorter than the source",
  broken: "has bytes that are no character",
  split: "translated in parts",
  refused: "too long to be translated",
  unseen: "has words that training never saw",
  unsure: "the model is less sure than usual",
  truncated: "did not end, and was cut",
};
const MOST_ALTERNATIVES = 5;

const service = { n_best: 1 };
const attention = byId("attention");
const frame = byId("frame");

/** The answer; an Error with the service's own words where there is none. */
async function ask(path, body, accept = "application/json") {
  const options = body && {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: accept },
    body: JSON.stringify(body),
  };
  let answer;
  try {
    answer = await fetch(path, options || {});
  } catch {
    throw new Error("the service cannot be reached");
  }
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({})); // a proxy answers with a page of its own
    throw new Error(error ?? `the service cannot be reached (status ${answer.status})`);
  }
  return accept === "text/html" ? answer.text() : answer.json();
}

async function introduce() {
  Object.assign(service, await ask("health"));
  const { source, target, targets, model } = service;
  const several = targets.length > 1;
  const languages = several ? `into ${targets.join(", ")}` : `${source} to ${target}`;
  document.title = `tx · ${languages}`;
  byId("source-name").textContent = several ? "Text" : `Text, ${source}`;
  if (!several) byId("source").lang = source;
  byId("about").textContent = `${languages} · ${model}`;
  byId("to").replaceChildren(...targets.map((one) => element("option", {}, one)));
  byId("to").value = target;
  byId("to").parentElement.hidden = !several;
}

async function translate() {
  const texts = byId("source").value.split(/\r?\n/).filter((text) => text.trim());
  if (!texts.length) return;
  await busy("translating …", async () => {
    const n_best = Math.min(service.n_best, MOST_ALTERNATIVES);
    const to = byId("to").value;
    const { translations } = await ask("translate", { texts, n_best, to });
    attention.hidden = true;
    byId("found").replaceChildren(...translations.map((found) => shown(found, to)));
    return translations.length === 1 ? byId("found").querySelector("button") : null;
  });
}

/** One text: its translations into that language, the best one first, and what is to be said of it. */
function shown(found, to) {
  const buttons = found.n_best.map((one) => {
    const [number, meaning] =
      one.utility === undefined
        ? [one.score, "log-probability per piece, as the search ranks it"]
        : [one.utility, "expected utility, by which the draws are ordered: the mean score against the others"];
    const button = element(
      "button",
      { type: "button", "aria-pressed": "false", onclick: () => look(found.source, one.translation, to, button) },
      element("bdi", { lang: to }, one.translation || "(nothing)"),
      element("span", { class: "score", title: meaning }, number === null ? "" : number.toFixed(2)),
    );
    return element("li", {}, button);
  });
  const flags = [...found.flags, ...(found.truncated ? ["truncated"] : [])];
  return element(
    "li",
    {},
    element("p", { class: "source", lang: byId("source").lang, dir: "auto" }, found.source),
    element("ol", { class: "alternatives" }, buttons),
    flags.length > 0 &&
      element("ul", { class: "flags" }, ...flags.map((flag) => element("li", {}, FLAGS[flag] ?? flag))),
  );
}

async function look(text, target, to, button) {
  await busy("looking …", async () => {
    const page = await ask("attention", { text, target, to }, "text/html");
    await drawn(page, button.closest("#found > li"));
    for (const other of document.querySelectorAll(".alternatives button"))
      other.setAttribute("aria-pressed", String(other === button));
  });
}

/** Puts the page below that text, and waits until it is there: a frame keeps the one before for a while. */
async function drawn(page, place) {
  attention.remove();
  attention.hidden = false;
  frame.srcdoc = page;
  const loaded = new Promise((done) => frame.addEventListener("load", done, { once: true }));
  place.append(attention);
  await loaded;
}

/** Says what is done, and what went wrong; a button that the work returns is pressed next. */
async function busy(what, work) {
  if (byId("ask").disabled) return; // one thing at a time
  byId("ask").disabled = true;
  byId("said").textContent = what;
  byId("said").classList.remove("wrong");
  let next = null;
  try {
    next = await work();
    byId("said").textContent = "";
  } catch (failure) {
    byId("said").textContent = failure.message;
    byId("said").classList.add("wrong");
  }
  byId("ask").disabled = false;
  next?.click();
}

byId("asking").addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
byId("source").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("asking").requestSubmit();
});
busy("", introduce);
