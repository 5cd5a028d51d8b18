"use strict";
// The map of latent codes for one choice of run, site and colour, as a figure that names CSS variables.
const composeMap = (figure, choice) => {
  const data = figure.explorer[choice.run];
  const places = data?.sites[choice.site];
  if (!places) return { data: [], layout: figure.layout };
  const numClasses = 12;
  const ramp = [0, 1, 2, 3, 4].map((step) => [step / 4, `var(--ramp-${step})`]);
  const rows = [...data.target.keys()];
  const faint = { color: "var(--track)", opacity: 0.55 };

  const trace = (chosen, name, marker) => ({
    type: "scatter", mode: "markers", name,
    x: chosen.map((row) => places[0][row]),
    y: chosen.map((row) => places[1][row]),
    text: chosen.map((row) => data.compositions[data.composition[row]].replace(" ∨ ", "<br>∨ ")),
    customdata: chosen.map((row) => [data.target[row], data.unseen[row] ? "held-out" : "seen"]),
    hovertemplate: "%{text}<br>target <b>%{customdata[0]}</b>, %{customdata[1]}<extra></extra>",
    marker: { size: 6.5, opacity: 0.85, symbol: chosen.map((row) => (data.unseen[row] ? "diamond" : "circle")), ...marker },
  });
  const classes = (names, classOf) => names.map((name, number) => {
    const chosen = rows.filter((row) => classOf(row) === number);
    return trace(chosen, name, { color: `var(--class-${number % numClasses})` });
  }).filter((each) => each.x.length);

  const highlighted = data.modules.findIndex((name) => `only ${name}` === choice.colour);
  let traces;
  if (choice.colour === "unseen") {
    traces = classes(["seen", "held-out"], (row) => data.unseen[row]);
  } else if (choice.colour === "module" && data.labels.length) {
    traces = classes(data.modules, (row) => data.labels[row][0]);
  } else if (highlighted >= 0 && data.labels.length) {
    const has = (row) => data.labels[row].includes(highlighted);
    traces = [
      trace(rows.filter((row) => !has(row)), "others", faint),
      trace(rows.filter(has), data.modules[highlighted], { color: "var(--class-1)" }),
    ];
  } else if (choice.colour === "target") {
    const bar = { thickness: 10, len: 0.5, outlinewidth: 0, title: { text: "target", side: "top" } };
    traces = [trace(rows, "target", { color: data.target, colorscale: ramp, showscale: true, colorbar: bar })];
  } else {
    traces = [trace(rows, "instances", faint)];
  }
  return { data: traces, layout: { ...figure.layout, showlegend: traces.length > 1 } };
};
