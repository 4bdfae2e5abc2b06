// Light or dark as it was chosen; loaded before the page is painted, so that it does not flash.
(() => {
  const chosen = localStorage.getItem("mesh-look");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
