"use strict";
// Charts: each figure carries its own specification. The interpreter of Vega-Embed (ast) makes no
// code of strings, so that the page may forbid it.
const draw = async (figure) => {
  const spec = JSON.parse(figure.querySelector("script").textContent);
  await vegaEmbed(figure.querySelector(".chart"), spec, {
    renderer: "svg", actions: false, ast: true, tooltip: { theme: "custom" },
  });
};

// Tabs as the ARIA practices describe them. Without scripts, and on paper, all is shown.
// A page that renews itself (lexfed run --live) comes back with the tab that was open.
const OPEN = `lexfed-tab-${location.pathname}`;
const remembered = () => { try { return sessionStorage.getItem(OPEN); } catch { return null; } };
const remember = (id) => { try { sessionStorage.setItem(OPEN, id); } catch { /* not allowed */ } };
const tabs = () => {
  const panels = [...document.querySelectorAll(".tab")];
  if (panels.length < 2) return;
  const list = document.createElement("div");
  list.setAttribute("role", "tablist");
  const open = (chosen, focus) => {
    panels.forEach((panel, number) => {
      const own = number === chosen, tab = list.children[number];
      panel.classList.toggle("open", own);
      tab.setAttribute("aria-selected", String(own));
      tab.tabIndex = own ? 0 : -1;
      if (own && focus) tab.focus();
      if (own) remember(panel.id);
    });
  };
  panels.forEach((panel, number) => {
    const tab = document.createElement("button");
    tab.type = "button";
    tab.id = `${panel.id}-tab`;
    tab.textContent = panel.querySelector("h2").textContent;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", panel.id);
    tab.addEventListener("click", () => open(number, false));
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    list.append(tab);
  });
  list.addEventListener("keydown", (event) => {
    const now = [...list.children].indexOf(document.activeElement), last = panels.length - 1;
    const to = { ArrowRight: now < last ? now + 1 : 0, ArrowLeft: now > 0 ? now - 1 : last,
      Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    open(to, true);
  });
  panels[0].before(list);
  panels[0].parentElement.classList.add("tabbed");
  const wanted = location.hash.slice(1) || remembered();
  open(Math.max(0, panels.findIndex((panel) => panel.id === wanted)), false);
};

tabs();
Promise.all([...document.querySelectorAll("figure[data-chart]")].map(draw))
  .then(() => { document.documentElement.dataset.drawn = "yes"; })
  .catch((error) => { document.documentElement.dataset.drawn = "no"; console.error(error); });
