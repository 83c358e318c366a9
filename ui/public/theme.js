// Before the first paint: the theme that the person chose, or the system's.
(() => {
  const asked = new URLSearchParams(location.search).get("theme");
  let kept = null;
  try {
    kept = localStorage.getItem("perdure.theme");
  } catch {}
  const theme = asked || kept;
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
