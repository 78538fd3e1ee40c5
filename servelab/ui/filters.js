// Which runs are looked at: values of settings, and bounds on figures.
import {data, figure, require, rows, setting, view} from "./state.js";
import {element, menu} from "./parts.js";

const MOST_VALUES = 200;

function facet(one, some, renew) {
  const counts = new Array(one.values.length).fill(0);
  for (const row of view.filters[one.name] ? rows(one.name) : some) counts[one.codes[row]] += 1;
  const chosen = Array.isArray(view.filters[one.name]) ? view.filters[one.name] : [];
  const order = one.values.map((value, code) => [value, value, counts[code]]).filter(([value, , count]) => count || chosen.includes(value));
  const numeric = order.every(([value]) => value === "–" || !Number.isNaN(Number(value)));
  order.sort(([a], [b]) => (numeric ? Number(a) - Number(b) : a < b ? -1 : 1));
  const said = chosen.length ? (chosen.length === 1 ? `= ${chosen[0]}` : `${chosen.length} of ${one.values.length}`) : `${order.length}`;
  const made = menu(one.words, said, order.slice(0, MOST_VALUES), chosen, (value, on) => {
    const left = chosen.filter((other) => other !== value);
    view.filters[one.name] = on ? [...left, value] : left;
    if (!view.filters[one.name].length) delete view.filters[one.name];
    renew();
  });
  made.dataset.name = one.name;
  if (chosen.length) made.classList.add("set");
  return made;
}

function bound(key, renew) {
  const one = figure(key);
  const own = view.bounds[key] || {};
  const end = (name, words) => {
    const field = element("input", {type: "number", step: "any", inputmode: "decimal", value: own[name] ?? "",
      "aria-label": `${one.words} ${words}`, onchange: () => {
        const value = field.value === "" ? null : Number(field.value);
        view.bounds[key] = {...view.bounds[key], [name]: value};
        if (value === null && !Object.values(view.bounds[key]).some((other) => typeof other === "number")) delete view.bounds[key];
        renew();
      }});
    return field;
  };
  return element("span", {class: "bound"}, element("span", {}, one.words), " at least ", end("min", "at least"), " at most ", end("max", "at most"));
}

export function filters(place, some, renew) {
  const open = place.querySelector("details.menu[open]")?.dataset.name;
  const scroll = place.querySelector("details.menu[open] .checks")?.scrollTop || 0;
  const facets = data.settings.filter((one) => one.values.length > 1).map((one) => facet(one, some, renew));
  const keys = [...new Set(["slo_attainment", ...Object.keys(view.bounds)])].filter((key) => figure(key));
  const more = element("select", {"aria-label": "bound another figure", onchange: async () => {
    await require([more.value]);
    view.bounds[more.value] = {};
    renew();
  }}, element("option", {value: ""}, "bound another figure …"),
    ...data.known.filter((one) => !keys.includes(one.key)).map((one) => element("option", {value: one.key}, one.words)));
  const clear = element("button", {class: "link", onclick: () => { view.filters = {}; view.bounds = {}; renew(); }}, "show all runs");
  const isSet = Object.keys(view.filters).some(setting) || Object.keys(view.bounds).length;
  place.replaceChildren(element("div", {class: "facets"}, ...facets, isSet ? clear : null),
    element("div", {class: "bounds"}, ...keys.map((key) => bound(key, renew)), more));
  const again = [...place.querySelectorAll("details.menu")].find((one) => one.dataset.name === open);
  if (open && again) { again.open = true; again.querySelector(".checks").scrollTop = scroll; }
}
