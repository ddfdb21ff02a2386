// Light or dark: as the system says, until somebody chooses.

const THEMES = ["system", "light", "dark"];
let theme = "system";

function wear(name) {
  theme = name;
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  byId("theme").textContent = `Theme: ${name}`;
}

function nextTheme() {
  wear(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
}
