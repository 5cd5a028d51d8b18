// The tables of claims on docs/claims.md: filtered by words and by verdict, sorted by a click on a heading.
document.addEventListener("DOMContentLoaded", () => {
  const tables = [...document.querySelectorAll("table")].filter((table) =>
    [...table.querySelectorAll("th")].some((heading) => heading.textContent.trim() === "verdict"));
  if (!tables.length || !tables[0].querySelector("th")) return;
  const column = (table, name) => [...table.querySelectorAll("th")].findIndex((heading) => heading.textContent.trim() === name);
  if (column(tables[0], "claim") < 0) return;
  const rows = tables.flatMap((table) => [...table.tBodies[0].rows].map((row) =>
    ({ row, words: row.textContent.toLowerCase(), verdict: row.cells[column(table, "verdict")].firstChild.textContent.trim() })));

  const words = Object.assign(document.createElement("input"), { type: "search", placeholder: "words in a row" });
  const verdict = document.createElement("select");
  verdict.add(new Option("all verdicts", ""));
  new Set(rows.map((each) => each.verdict)).forEach((name) => verdict.add(new Option(name)));
  const count = document.createElement("span");
  const bar = document.createElement("p");
  bar.className = "filter";
  bar.append(words, " ", verdict, " ", count);
  const heading = tables[0].closest(".md-typeset__scrollwrap") ?? tables[0];
  heading.before(bar);

  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/);
    rows.forEach((each) => {
      each.row.hidden = (verdict.value && each.verdict !== verdict.value) || !wanted.every((word) => each.words.includes(word));
    });
    count.textContent = `${rows.filter((each) => !each.row.hidden).length} of ${rows.length} rows`;
  };
  words.addEventListener("input", filter);
  verdict.addEventListener("change", filter);
  filter();

  tables.forEach((table) => table.querySelectorAll("th").forEach((title, number) => {
    title.style.cursor = "pointer";
    title.addEventListener("click", () => {
      const down = title.dataset.order === "up";
      title.dataset.order = down ? "down" : "up";
      const key = (row) => row.cells[number].textContent.trim().replace("−", "-");
      const sorted = [...table.tBodies[0].rows].sort((a, b) =>
        (parseFloat(key(a)) - parseFloat(key(b))) || key(a).localeCompare(key(b)));
      table.tBodies[0].append(...(down ? sorted.reverse() : sorted));
    });
  }));
});
