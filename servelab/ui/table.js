// The runs as a table: sorted, a page at a time, or grouped with means.
import {data, figure, isBetter, label, require, setting, varying, view, word} from "./state.js";
import {aligned, element, menu, number, scrolled, shown, whole} from "./parts.js";
import {open} from "./detail.js";
import {isPicked, pick} from "./picked.js";

const PAGE = 50;
const USUAL = ["goodput_rps", "goodput_per_gpu", "good_per_usd", "slo_attainment", "p99_ttft_ms", "p99_tpot_ms",
  "usd_per_million_good_tokens", "usd_per_hour", "gpus"];

const figuresShown = () => [...new Set([...USUAL, ...view.added, view.rank])].filter((key) => figure(key) && !view.hidden.includes(key)).map(figure);

function sorted(some) {
  const by = figure(view.rank) || null;
  const named = by ? null : setting(view.rank);
  if (named) {
    const at = named.values.map((value) => (Number.isNaN(Number(value)) ? value : Number(value)));
    const below = (a, b) => (at[named.codes[a]] < at[named.codes[b]] ? -1 : at[named.codes[a]] > at[named.codes[b]] ? 1 : 0);
    return [...some].sort((a, b) => (view.ascending ? -1 : 1) * below(a, b));
  }
  if (!by) return some;
  const sign = view.ascending ? -1 : 1;
  const {values} = by;
  const is = (a, b) => (values[a] === values[b] ? 0 : values[a] === null ? 1 : values[b] === null ? -1 : isBetter(by, values[a], values[b]) ? -sign : sign);
  return [...some].sort(is);
}

function heading(name, words, kind, renew) {
  const on = view.rank === name;
  const button = element("button", {onclick: () => {
    view.ascending = on ? !view.ascending : false;
    view.rank = name;
    view.page = 0;
    renew();
  }}, words, on ? element("span", {"aria-hidden": "true"}, view.ascending ? " ▴" : " ▾") : null);
  return element("th", {scope: "col", class: kind, "aria-sort": on ? (view.ascending ? "ascending" : "descending") : null}, button);
}

function body(page, first, settings, figures) {
  const ranked = figures.findIndex((one) => one.key === view.rank);
  const numbers = figures.map((one) => aligned(page.map((row) => shown(one, row)), page.map((row) => one.values[row])));
  return page.map((row, place) => {
    const box = element("input", {type: "checkbox", "aria-label": `pick ${label(row)}`, onchange: () => pick(data.keys[row])});
    box.checked = isPicked(data.keys[row]);
    const name = element("button", {class: "link", "aria-label": `open run ${first + place + 1}: ${label(row)}`, onclick: () => open([data.keys[row]])},
      whole(first + place + 1));
    return element("tr", {"data-key": data.keys[row], onclick: (event) => { if (!event.target.closest("input,button,a")) open([data.keys[row]]); }},
      element("td", {}, box), element("td", {class: "n"}, name),
      ranked < 0 ? null : numbers[ranked][place], ...settings.map((one) => element("td", {}, word(one, row))),
      ...numbers.filter((_, at) => at !== ranked).map((column) => column[place]));
  });
}

function pager(count, renew) {
  const last = Math.max(0, Math.ceil(count / PAGE) - 1);
  view.page = Math.min(Math.max(0, view.page), last);
  const go = (words, to) => element("button", {class: "link", disabled: to < 0 || to > last, onclick: () => { view.page = to; renew(); }}, words);
  return element("p", {class: "pager"}, go("‹ before", view.page - 1),
    ` runs ${whole(Math.min(count, view.page * PAGE + 1))} to ${whole(Math.min(count, (view.page + 1) * PAGE))} of ${whole(count)} `, go("after ›", view.page + 1));
}

function toggled(list, value, on) {
  return on ? [...list.filter((one) => one !== value), value] : list.filter((one) => one !== value);
}

function controls(some, renew) {
  const names = data.settings.filter((one) => one.values.length > 1);
  const group = menu("Group by", view.group.length ? view.group.join(", ") : "each run", names.map((one) => [one.name, one.words]), view.group, (value, on) => {
    view.group = toggled(view.group, value, on);
    renew();
  });
  group.dataset.name = "group";
  const seeds = names.filter((one) => !one.name.split(".").pop().endsWith("seed") && one.name !== "load_state").map((one) => one.name);
  const over = element("button", {class: "link", onclick: () => { view.group = view.group.length ? [] : seeds; renew(); }},
    view.group.length ? "each run" : "mean over seeds");
  const shownNow = figuresShown().map((one) => one.key);
  const columns = menu("Columns", `${shownNow.length} figures`, data.known.map((one) => [one.key, one.words]), shownNow, async (value, on) => {
    await require([value]);
    view.added = toggled(view.added, value, on && !USUAL.includes(value));
    view.hidden = toggled(view.hidden, value, !on);
    renew();
  });
  columns.dataset.name = "columns";
  return element("div", {class: "facets"}, group, columns, names.some((one) => one.name === "seed") || view.group.length ? over : null);
}

export function table(place, some, renew) {
  const before = place.querySelector("details.menu[open]")?.dataset.name;
  const bar = controls(some, renew);
  if (before) { const again = [...bar.querySelectorAll("details")].find((one) => one.dataset.name === before); if (again) again.open = true; }
  const figures = figuresShown();
  const groups = view.group.map(setting).filter(Boolean);
  if (groups.length) { place.replaceChildren(bar, grouped(some, groups, figures, renew)); return; }
  const settings = varying(some).sort((a, b) => (a.name === "load_state") - (b.name === "load_state"));
  const ranked = figures.filter((one) => one.key === view.rank);
  const others = figures.filter((one) => one.key !== view.rank);
  const pages = pager(some.length, renew);
  const page = sorted(some).slice(view.page * PAGE, (view.page + 1) * PAGE);
  const head = element("tr", {}, element("th", {scope: "col"}, element("span", {class: "unseen"}, "pick")), element("th", {scope: "col", class: "n"}, "run"),
    ...ranked.map((one) => heading(one.key, one.words, "n", renew)), ...settings.map((one) => heading(one.name, one.words, "", renew)),
    ...others.map((one) => heading(one.key, one.words, "n", renew)));
  const made = element("table", {class: "runs"}, element("thead", {}, head), element("tbody", {}, ...body(page, view.page * PAGE, settings, figures)));
  const said = element("p", {class: "note"}, "A click on a run says what differs from the best and why it lost goodput; pick two to compare them.");
  place.replaceChildren(bar, said, scrolled("Runs", made), pages);
}

// --- groups ---------------------------------------------------------------------------------------------------------

export function groupsOf(some, settings) {
  const found = new Map();
  for (const row of some) {
    const name = settings.map((one) => one.codes[row]).join(",");
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(row);
  }
  return [...found.values()];
}

export function mean(one, some) {
  const own = some.map((row) => one.values[row]).filter((value) => value !== null);
  return own.length ? own.reduce((sum, value) => sum + value, 0) / own.length : null;
}

function grouped(some, settings, figures, renew) {
  const by = figure(view.rank) || figures[0];
  const made = groupsOf(some, settings).map((own) => ({own, means: figures.map((one) => mean(one, own)), at: by ? mean(by, own) : null}));
  if (by) made.sort((a, b) => (a.at === null) - (b.at === null) || (isBetter(by, a.at, b.at) ? -1 : 1) * (view.ascending ? -1 : 1));
  const several = made.some((one) => one.own.length > 1);
  const ends = (own, pickEnd) => { const values = own.map((row) => by.values[row]).filter((value) => value !== null); return values.length ? pickEnd(...values) : null; };
  const columns = figures.map((one, at) => aligned(made.map((group) => number(group.means[at] === null ? null : group.means[at] * one.scale)), made.map((group) => group.means[at])));
  const ranges = by && several ? [Math.min, Math.max].map((pickEnd) => { const raw = made.map((group) => ends(group.own, pickEnd)); return aligned(raw.map((value) => number(value === null ? null : value * by.scale)), raw); }) : [];
  const lines = made.map((group, place) => element("tr", {onclick: () => { for (const one of settings) view.filters[one.name] = [word(one, group.own[0])]; view.group = []; renew(); }},
    ...settings.map((one) => element("td", {}, word(one, group.own[0]))), element("td", {class: "n"}, whole(group.own.length)),
    ...ranges.map((column) => column[place]), ...columns.map((column) => column[place])));
  const head = element("tr", {}, ...settings.map((one) => element("th", {scope: "col"}, one.words)), element("th", {scope: "col", class: "n"}, "runs"),
    ...(ranges.length ? [`lowest ${by.words}`, `highest ${by.words}`] : []).map((words) => element("th", {scope: "col", class: "n"}, words)),
    ...figures.map((one) => heading(one.key, one.words, "n", renew)));
  const said = element("p", {class: "note"}, `${whole(made.length)} groups; each figure is the mean of the runs of a group. A click on a group shows its runs.`);
  const all = element("table", {class: "runs"}, element("thead", {}, head), element("tbody", {}, ...lines.slice(0, 500)));
  return element("div", {}, said, scrolled("Groups of runs", all));
}
