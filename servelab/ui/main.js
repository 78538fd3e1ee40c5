// The page: reads the runs, then shows what the view asks for.
import {bestOf, data, figure, label, load, PREFERRED, remember, require, rows, setting, view, word} from "./state.js";
import {element, shown, whole} from "./parts.js";
import {filters} from "./filters.js";
import {table} from "./table.js";
import {pivot} from "./pivot.js";
import {pareto} from "./pareto.js";
import {follow} from "./live.js";
import {open} from "./detail.js";

const VIEWS = {table, pivot, pareto};
const at = (id) => document.getElementById(id);

function head(some) {
  const all = data.keys.length;
  at("count").textContent = all ? `${whole(all)} runs${some.length < all ? `, ${whole(some.length)} of them shown` : ""}` : "The store holds no runs yet; those of a sweep or a study appear here as they end.";
  const slo = setting("SLO");
  const known = slo ? [...new Set(some.map((row) => slo.values[slo.codes[row]]))] : data.slo;
  at("slo").textContent = known.length === 1 ? `SLO: ${known[0]}` : known.length ? `${known.length} different SLOs: choose one in the menu SLO before you compare goodput` : "";
  at("slo").textContent += data.states.length === 1 && !["stable", "–"].includes(data.states[0]) ? `; all runs: ${data.states[0]}` : "";
}

// How a tile says that its run is not the only one, or did not keep up.
function others(some, one, row) {
  const equal = some.filter((other) => one.values[other] === one.values[row]).length - 1;
  const state = setting("load_state");
  const said = state && !["stable", "–"].includes(word(state, row)) ? [word(state, row)] : [];
  return [...said, ...(equal ? [`${whole(equal)} more ${equal > 1 ? "have" : "has"} as much`] : [])].map((words) => `; ${words}`).join("");
}

function best(some) {
  const tiles = PREFERRED.concat("capacity").map(figure).filter((one) => one && bestOf(some, one.key) >= 0).map((one) => {
    const row = bestOf(some, one.key);
    return element("button", {class: "tile", onclick: () => { view.rank = one.key; view.ascending = false; view.page = 0; renew(); open([data.keys[row]]); }},
      element("span", {}, `best ${one.words}`), element("b", {}, element("data", {value: String(one.values[row])}, shown(one, row))), element("small", {}, label(row) + others(some, one, row)));
  });
  at("best").replaceChildren(...tiles);
}

function renew() {
  remember();
  const some = rows();
  head(some);
  best(some);
  filters(at("filters"), some, renew);
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const on = tab.dataset.tab === view.tab;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
  }
  at("shown").setAttribute("aria-labelledby", `tab-${view.tab}`);
  at("shown").classList.toggle("empty", !some.length);
  if (some.length) VIEWS[view.tab](at("shown"), some, renew);
  else at("shown").replaceChildren(element("p", {}, data.keys.length ? "No run passes all filters." : ""));
}

function begin() {
  if (!VIEWS[view.tab]) view.tab = "table";
  const tabs = [...document.querySelectorAll("[role=tab]")];
  for (const [place, tab] of tabs.entries()) {
    tab.addEventListener("click", () => { view.tab = tab.dataset.tab; renew(); });
    tab.addEventListener("keydown", (event) => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (step) { const next = tabs[(place + step + tabs.length) % tabs.length]; next.focus(); next.click(); }
    });
  }
  at("detail").addEventListener("click", (event) => { if (event.target === at("detail")) at("detail").close(); });
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target) && event.target.isConnected) menu.open = false;
  });
  matchMedia("(prefers-color-scheme:dark)").addEventListener("change", () => { if (view.tab === "pareto") renew(); });
  let isFirst = true;
  follow(async (hasMore) => {
    if (!hasMore && !isFirst) return;
    isFirst = false;
    await load();
    await require(["offered", "capacity"]);
    if (!document.querySelector("details.menu[open]")) renew();
  });
}

begin();
