// The button that switches between light and dark.
const button = document.getElementById("theme");
button.hidden = false;
button.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("recombine-theme", root.dataset.theme); } catch { /* a browser may forbid storage */ }
});
