"use strict";
(() => {
  const maps = JSON.parse(document.getElementById("maps").textContent);
  const SVG = document.querySelector("svg.defs").namespaceURI;
  const NUM_CLASSES = 12;

  // A section shows the parts whose `data-when` agrees with its pickers.
  const readChoice = (section) => Object.fromEntries(
    [...section.querySelectorAll("[data-picks] [name]")].map((each) => [each.name, each.value]),
  );
  const agrees = (wanted, choice) => Object.entries(JSON.parse(wanted)).every(([name, value]) => choice[name] === value);
  const choose = (section) => {
    const choice = readChoice(section);
    for (const part of section.querySelectorAll("[data-when]")) part.hidden = !agrees(part.dataset.when, choice);
    for (const row of section.querySelectorAll("[data-mark]")) {
      row.toggleAttribute("aria-current", agrees(row.dataset.mark, choice));
    }
    for (const plot of section.querySelectorAll(".code-map")) drawMap(plot, maps[choice.run], choice);
  };

  // The map of latent codes: the class of each point, or its place on the scale of colours.
  const colourMap = (map, colour) => {
    const rows = map.target.map((_, row) => row);
    const only = map.modules.findIndex((name) => colour === `only ${name}`);
    const classes = (names, classOf) => ({
      colours: rows.map((row) => `var(--class-${classOf(row) % NUM_CLASSES})`),
      key: [...new Set(rows.map(classOf))].sort((a, b) => a - b).map((one) => [names[one], `var(--class-${one % NUM_CLASSES})`]),
    });
    if (colour === "unseen") return classes(["seen", "held-out"], (row) => map.unseen[row]);
    if (colour === "module" && map.labels.length) return classes(map.modules, (row) => map.labels[row][0] ?? 0);
    if (only >= 0 && map.labels.length) {
      const has = (row) => map.labels[row].includes(only);
      return { colours: rows.map((row) => (has(row) ? "var(--class-1)" : "var(--track)")), key: [[map.modules[only], "var(--class-1)"], ["others", "var(--track)"]] };
    }
    const known = map.target.filter((value) => value !== null);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const shade = (value) => {
      const place = (4 * (value - low)) / (high - low || 1);
      const step = Math.min(Math.floor(place), 3);
      return `color-mix(in oklab, var(--ramp-${step}), var(--ramp-${step + 1}) ${Math.round(100 * (place - step))}%)`;
    };
    return { colours: map.target.map((value) => (value === null ? "var(--track)" : shade(value))), key: [[`target ${low}`, shade(low)], [`target ${high}`, shade(high)]] };
  };

  const drawMap = (plot, map, choice) => {
    const places = map?.sites[choice.site] ?? [];
    const { colours, key } = places.length ? colourMap(map, choice.colour) : { colours: [], key: [] };
    const make = (name, attributes, text) => {
      const element = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      if (text) element.textContent = text;
      return element;
    };
    const svg = make("svg", { viewBox: "-25 -25 1050 1050" });
    places.forEach(([x, y], row) => {
      const shape = map.unseen[row] ? "M0-9 9 0 0 9-9 0z" : "M-7 0a7 7 0 1 0 14 0a7 7 0 1 0-14 0z";
      const point = make("path", { d: shape, transform: `translate(${x} ${1000 - y})`, style: `fill: ${colours[row]}` });
      const words = `${map.compositions[map.composition[row]]}\ntarget ${map.target[row]}, ${map.unseen[row] ? "held-out" : "seen"}`;
      point.append(make("title", {}, words));
      svg.append(point);
    });
    plot.replaceChildren(svg);
    plot.nextElementSibling.replaceChildren(...key.map(([name, colour]) => {
      const [item, chip] = [document.createElement("li"), document.createElement("span")];
      chip.className = "chip";
      chip.style.background = colour;
      item.append(chip, name);
      return item;
    }));
  };

  for (const pickers of document.querySelectorAll("[data-picks]")) {
    const section = pickers.closest("section");
    choose(section);
    pickers.addEventListener("change", () => choose(section));
  }

  // Nobody can open a fold on paper.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open], .configuration)")];
    for (const details of folded) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of folded) details.open = false;
  });
})();
