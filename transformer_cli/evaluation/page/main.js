// Puts the page together.

wear("system");
byId("theme").addEventListener("click", nextTheme);
byId("tools").hidden = false;
JSON.parse(byId("data").textContent).forEach((test, n) => {
  const section = byId(`test-${n + 1}`);
  new Sentences(test, section.querySelector(".sentences"), section.querySelector(".parts"));
});
performance.mark("ready");
