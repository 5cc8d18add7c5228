"use strict";
// Light or dark as the system says, until the button is pressed. A browser may refuse storage to a file; then it lasts for the page.
(() => {
  const root = document.documentElement;
  const key = "thiefbench-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  try {
    const kept = localStorage.getItem(key);
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* no storage */ }
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem(key, root.dataset.theme); } catch { /* no storage */ }
      label();
    });
    system.addEventListener("change", label);
    label();
    button.hidden = false;
  });
})();
