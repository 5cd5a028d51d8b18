// Light or dark: the reader's last choice, before anything is painted, and the button that switches.
const root = document.documentElement;
try {
  const choice = localStorage.getItem("recombine-theme");
  if (choice === "light" || choice === "dark") root.dataset.theme = choice;
} catch { /* a browser may forbid storage for files */ }
document.addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("recombine-theme", root.dataset.theme); } catch { /* as above */ }
  });
});
