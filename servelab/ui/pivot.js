// A figure over two settings.
import {bestOf, data, figure, isBetter, require, setting, view, word} from "./state.js";
import {element, number, scrolled, select, whole} from "./parts.js";
import {mean} from "./table.js";

const HOWS = {best: "best", mean: "mean", low: "lowest", high: "highest", count: "number of runs"};

function value(one, own, how) {
  const values = own.map((row) => one.values[row]).filter((other) => other !== null);
  if (how === "count") return own.length;
  if (!values.length) return null;
  if (how === "mean") return mean(one, own);
  if (how === "best") return one.values[bestOf(own, one.key)];
  return how === "low" ? Math.min(...values) : Math.max(...values);
}

function inOrder(one, codes) {
  const at = (code) => (Number.isNaN(Number(one.values[code])) ? one.values[code] : Number(one.values[code]));
  return [...codes].sort((a, b) => (at(a) < at(b) ? -1 : at(a) > at(b) ? 1 : 0));
}

export function pivot(place, some, renew) {
  const names = data.settings.filter((one) => one.values.length > 1);
  const {pivot: own} = view;
  if (!setting(own.rows)) own.rows = names[0]?.name || "";
  if (!setting(own.columns) || own.columns === own.rows) own.columns = names.find((one) => one.name !== own.rows && one.name !== "load_state")?.name || "";
  const [down, across, one] = [setting(own.rows), setting(own.columns), figure(own.figure)];
  const options = names.map((other) => [other.name, other.words]);
  const choose = (name) => async (chosen) => { own[name] = chosen; if (name === "figure") await require([chosen]); renew(); };
  const bar = element("div", {class: "fields"}, select("rows", options, own.rows, choose("rows")), select("columns", options, own.columns, choose("columns")),
    select("figure", data.known.map((other) => [other.key, other.words]), own.figure, choose("figure")), select("of the runs of a cell", Object.entries(HOWS), own.how, choose("how")));
  if (!down || !across || !one) { place.replaceChildren(bar, element("p", {}, "The runs differ in fewer than two settings.")); return; }
  const cells = new Map();
  for (const row of some) {
    const name = `${down.codes[row]},${across.codes[row]}`;
    if (!cells.has(name)) cells.set(name, []);
    cells.get(name).push(row);
  }
  const rows = inOrder(down, new Set(some.map((row) => down.codes[row])));
  const columns = inOrder(across, new Set(some.map((row) => across.codes[row])));
  const found = new Map([...cells].map(([name, of]) => [name, value(one, of, own.how)]));
  const values = [...found.values()].filter((other) => other !== null);
  const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 0];
  const scale = own.how === "count" ? 1 : one.scale;
  const cell = (row, column) => {
    const name = `${row},${column}`;
    const of = cells.get(name);
    if (!of) return element("td", {class: "n"}, "–");
    const raw = found.get(name);
    const share = raw === null || high === low ? 0 : (raw - low) / (high - low);
    const good = one.better < 0 && own.how !== "count" ? 1 - share : share;
    const isBest = raw !== null && high > low && own.how !== "count" && (raw === high || raw === low) && !values.some((other) => isBetter(one, other, raw));
    const text = number(raw === null ? null : raw * scale);
    const button = element("button", {onclick: () => {
      view.filters[down.name] = [word(down, of[0])];
      view.filters[across.name] = [word(across, of[0])];
      view.tab = "table";
      renew();
    }, title: `${whole(of.length)} runs`}, raw === null ? text : element("data", {value: String(raw)}, text));
    const made = element("td", {class: isBest ? "n best" : "n"}, button);
    made.style.setProperty("--share", (0.05 + 0.4 * good).toFixed(3));
    return made;
  };
  const head = element("tr", {}, element("th", {scope: "col"}, `${down.words} \\ ${across.words}`), ...columns.map((code) => element("th", {scope: "col", class: "n"}, across.values[code])));
  const lines = rows.map((row) => element("tr", {}, element("th", {scope: "row"}, down.values[row]), ...columns.map((column) => cell(row, column))));
  const made = element("table", {class: "heat"}, element("thead", {}, head), element("tbody", {}, ...lines));
  const said = `${HOWS[own.how]} ${own.how === "count" ? "" : one.words} of the ${whole(some.length)} runs that the filters keep. A click on a cell shows its runs.`;
  place.replaceChildren(bar, element("p", {class: "note"}, said), scrolled("Pivot table", made));
}
