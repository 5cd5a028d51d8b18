// Before anything is painted: the reader's last choice, if there is one.
try {
  const choice = localStorage.getItem("recombine-theme");
  if (choice === "light" || choice === "dark") document.documentElement.dataset.theme = choice;
} catch { /* a browser may forbid storage for files */ }
