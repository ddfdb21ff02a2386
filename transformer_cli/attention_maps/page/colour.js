// One scale for every weight: the colours of viridis, its zero the ground of the page, light or dark.

const STOPS = {
  light: ["#f6f5f0", "#e6f0c4", "#b5deA0", "#6cc68c", "#33a58c", "#277f8e", "#37598c", "#46317e", "#3b0f5c"],
  dark: ["#1d1a29", "#2f2452", "#443a83", "#39578c", "#2c728e", "#208f8c", "#35b779", "#90d743", "#fde725"],
};

const scales = Object.fromEntries(Object.entries(STOPS).map(([theme, stops]) => [theme, scaleThrough(stops)]));

/** 256 colours as [red, green, blue]. */
function scaleThrough(stops) {
  const corners = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, index) => {
    const place = (index / 255) * (corners.length - 1);
    const low = Math.min(Math.floor(place), corners.length - 2);
    return corners[low].map((from, part) => Math.round(from + (corners[low + 1][part] - from) * (place - low)));
  });
}

let scale = scales.light;

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function followTheme() {
  scale = scales[isDark() ? "dark" : "light"];
}

/** The colour of a weight between 0 and most. */
function colourOf(value, most = 1) {
  return scale[Math.round(255 * (most > 0 ? Math.min(value / most, 1) : 0))];
}

function css([red, green, blue]) {
  return `rgb(${red} ${green} ${blue})`;
}

/** Black or white, whichever reads better on the colour: never below 4.5 : 1. */
function inkOn(colour) {
  const [red, green, blue] = colour.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

/** A property of the page's style sheet, for the canvas. */
function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
