// Brings the page up to date while its run is active, in place: what was unfolded stays so, and nothing scrolls.
"use strict";
const PAUSE_MS = 2000;

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.ok) show(new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main"));
    } catch {
      // The server is away for the moment; the page stays as it was.
    }
  }
  if (document.querySelector("main[data-live]")) setTimeout(refresh, PAUSE_MS);
}

function show(fresh) {
  const old = document.querySelector("main");
  if (!fresh || old.contains(document.activeElement)) return;
  const open = [...old.querySelectorAll("details")].map((d) => d.open);
  fresh.querySelectorAll("details").forEach((d, i) => { d.open = open[i] ?? false; });
  old.replaceWith(document.adoptNode(fresh));
}

setTimeout(refresh, PAUSE_MS);
