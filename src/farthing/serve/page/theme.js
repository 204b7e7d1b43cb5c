// Runs before the page is drawn, so that nothing flashes in the wrong theme. The switch goes through
// the system's own, light and dark.
(() => {
  "use strict";
  const themes = ["system", "light", "dark"];
  const root = document.documentElement;

  function remembered() {
    try {
      const theme = localStorage.getItem("farthing.theme");
      return themes.includes(theme) ? theme : "system";
    } catch {
      return "system"; // storage is switched off
    }
  }

  function show(theme) {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
  }

  show(remembered());
  document.addEventListener("DOMContentLoaded", () => {
    show(root.dataset.theme);
    document.getElementById("theme").addEventListener("click", () => {
      const next = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
      try {
        localStorage.setItem("farthing.theme", next);
      } catch {
        // It holds until the page is left.
      }
      show(next);
    });
  });
})();
