"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const hiddenSeries = new Set();
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = { responsive: true, displayModeBar: false };

  // Figures name CSS variables where others name colours.
  const resolve = (value, styles) => {
    if (typeof value === "string" && value.startsWith("var(")) return styles.getPropertyValue(value.slice(4, -1)).trim();
    if (Array.isArray(value)) return value.map((each) => resolve(each, styles));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, resolve(each, styles)]));
  };

  const draw = (element) => {
    const stored = figures[element.dataset.figure];
    const composed = stored.explorer ? composeMap(stored, readChoice(element.closest("section"))) : stored;
    const figure = resolve(composed, getComputedStyle(root));
    for (const trace of figure.data) trace.visible = !hiddenSeries.has(trace.meta?.series);
    if (touch) figure.layout.dragmode = false; // a finger on a plot scrolls the page
    if (root.classList.contains("printing")) figure.layout.width = element.clientWidth; // there is no time to resize
    Plotly.react(element, figure.data, figure.layout, config);
  };
  const drawAll = (within = document) => {
    for (const element of within.querySelectorAll(".plot")) if (element.offsetParent) draw(element);
  };

  // A section shows the parts whose `data-when` agrees with what its pickers say.
  const readChoice = (section) => Object.fromEntries(
    [...section.querySelectorAll("[data-picks] [name]")].map((each) => [each.name, each.value]),
  );
  const agrees = (wanted, choice) => Object.entries(JSON.parse(wanted)).every(([name, value]) => choice[name] === value);
  const choose = (section) => {
    const choice = readChoice(section);
    let numShown = 0;
    for (const part of section.querySelectorAll("[data-when]")) {
      part.hidden = !agrees(part.dataset.when, choice);
      if (!part.hidden) numShown += 1;
    }
    for (const part of section.querySelectorAll("[data-otherwise]")) part.hidden = numShown > 0;
    for (const row of section.querySelectorAll("[data-mark]")) {
      row.toggleAttribute("aria-current", agrees(row.dataset.mark, choice));
    }
  };
  for (const pickers of document.querySelectorAll("[data-picks]")) {
    const section = pickers.closest("section");
    choose(section);
    pickers.addEventListener("change", () => { choose(section); drawAll(section); });
  }

  const metric = document.getElementById("metric");
  const chooseMetric = () => {
    for (const element of document.querySelectorAll("[data-metric]")) {
      element.hidden = metric !== null && element.dataset.metric !== metric.value;
    }
    drawAll();
  };
  metric?.addEventListener("change", chooseMetric);

  for (const button of document.querySelectorAll("[data-series]")) {
    button.addEventListener("click", () => {
      const series = Number(button.dataset.series);
      const shown = hiddenSeries.delete(series);
      if (!shown) hiddenSeries.add(series);
      button.setAttribute("aria-pressed", String(shown));
      drawAll();
    });
  }

  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const toggle = document.getElementById("theme");
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("recombine-theme", root.dataset.theme); } catch { /* as in theme.js */ }
    drawAll();
  });
  systemDark.addEventListener("change", () => drawAll());

  // Paper is light, and nobody can open a fold on it.
  let themeOnScreen;
  let folded = [];
  addEventListener("beforeprint", () => {
    themeOnScreen = root.dataset.theme;
    root.dataset.theme = "light";
    root.classList.add("printing");
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const details of folded) details.open = true;
    drawAll();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    if (themeOnScreen) root.dataset.theme = themeOnScreen;
    else delete root.dataset.theme;
    for (const details of folded) details.open = false;
    drawAll();
  });

  chooseMetric();
})();
