// The layer between the pictures of a page and Vega: a picture that comes into view is drawn again from its points.
"use strict";
(() => {
const INK = {kept: "var(--c0)", missed: "var(--c1)"};
const ROWS = 20; // of the table of requests
const charts = []; // {figure, data, names, view, low, high}
const off = {}; // names of series that are not shown
const block = document.querySelector("script.requests");
const requests = block && JSON.parse(block.textContent);
const column = (name) => requests.columns.find((one) => one.name === name).values;
const told = requests && requests.columns[0].values.map((_, row) =>
  requests.columns.filter((one) => one.values[row] !== null && one.values[row] !== "")
    .map((one) => [one.name, shown(one.values[row])]));
const arrivals = requests && column("arrival (s)").map((one) => one - requests.begin_s);

function shown(value) {
  if (typeof value !== "number") return String(value);
  return Math.abs(value) >= 999.5 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}

function element(tag, content, parent) {
  const made = document.createElement(tag);
  made.textContent = content;
  if (parent) parent.append(made);
  return made;
}

// --- a picture ------------------------------------------------------------------------------------------------------

const ink = (kind) => INK[kind] || `var(--c${kind.slice(1)})`;

function dash(figure, kind) {
  const drawn = figure.querySelector(`path.line.${kind}`);
  const found = drawn ? getComputedStyle(drawn).strokeDasharray : "none";
  return found === "none" ? [1, 0] : found.split(",").map(parseFloat);
}

function scale(axis, letter) {
  const domain = [{expr: `${letter}0`}, {expr: `${letter}1`}];
  return axis.log ? {type: "log", domain, nice: false} : {type: "linear", domain, nice: false, zero: false};
}

const LABEL = "datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + 'M' : datum.value >= 1e3 ? " +
  "format(datum.value / 1e3, '~g') + 'k' : format(datum.value, '~g')";

// Whether a tick of a logarithmic axis is none of 1, 3, 10 ...; of 1, 2, 5, 10 ... on a short axis, where all count if
// it is shorter still.
function lacks(letter) {
  const decades = `log(${letter}1 / ${letter}0) / LN10`;
  const lead = "round(datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9)))";
  return `(${decades} > 3.5 ? ${lead} !== 1 : ${decades} > 2 ? ${lead} !== 1 && ${lead} !== 3 : ` +
    `${decades} > 0.6 ? ${lead} !== 1 && ${lead} !== 2 && ${lead} !== 5 : false)`;
}

function channel(axis, letter) {
  const test = axis.log ? lacks(letter) : "false";
  const labelExpr = `${test} ? '' : ${LABEL}`;
  const gridOpacity = {condition: {test, value: 0}, value: 1};
  const ticks = {title: axis.label, labelExpr, gridOpacity, ticks: false, tickCount: axis.log ? 20 : 5, labelOverlap: "greedy"};
  return {field: letter, type: "quantitative", scale: scale(axis, letter), axis: ticks};
}

function limit(one) {
  const other = one.axis === "x" ? "y" : "x";
  const near = {expr: `scale('${one.axis}', ${one.at}) > 0.6 * width ? 'right' : 'left'`};
  const place = one.axis === "x" ? {align: near, dx: {expr: `scale('x', ${one.at}) > 0.6 * width ? -4 : 4`}, dy: 9}
    : {align: "right", dy: -6, dx: -2};
  const end = {[other]: {value: one.axis === "x" ? 0 : "width"}};
  const at = {[one.axis]: {datum: one.at, type: "quantitative"}};
  const data = {values: [{}]};
  return [
    {data, mark: {type: "rule", color: "var(--limit)", strokeDash: [5, 3], strokeWidth: 1.4, clip: true}, encoding: at},
    {data, mark: {type: "text", text: one.label, color: "var(--limit)", clip: true, ...place}, encoding: {...at, ...end}},
  ];
}

function points(chart) {
  return chart.data.series.flatMap((one) => one.x.map((x, place) => {
    const behind = one.behind[place];
    const arrival = typeof behind === "number" && requests ? arrivals[behind] : null;
    return {x, y: one.y[place], shape: one.shape, kind: one.kind, name: chart.names[one.kind] || "", behind, arrival, place};
  }));
}

function layers(chart) {
  const kinds = [...new Set(chart.data.series.map((one) => one.kind))];
  const shapes = new Set(chart.data.series.map((one) => one.shape));
  const xy = {x: channel(chart.data.x, "x"), y: channel(chart.data.y, "y")};
  const color = {field: "kind", type: "nominal", legend: null, scale: {domain: kinds, range: kinds.map(ink)}};
  const dashes = kinds.map((kind) => dash(chart.figure, kind));
  const strokeDash = {field: "kind", type: "nominal", legend: null, scale: {domain: kinds, range: dashes}};
  const only = (shape) => ({transform: [{filter: `datum.shape === '${shape}' && !off[datum.name]`}]});
  const near = {name: "near", select: {type: "point", nearest: true, on: "pointermove", clear: "pointerout", toggle: false}};
  const line = {type: "line", clip: true, strokeWidth: 1.8, strokeJoin: "round"};
  const made = [];
  if (shapes.has("line")) made.push({...only("line"), mark: line, encoding: {...xy, color, strokeDash}});
  if (shapes.has("steps"))
    made.push({...only("steps"), mark: {...line, interpolate: "step-after"}, encoding: {...xy, color, strokeDash}});
  if (shapes.has("rings"))
    made.push({...only("rings"), mark: {type: "point", size: 45, filled: true, fill: "var(--paper)", opacity: 1, clip: true},
      encoding: {...xy, stroke: color}});
  if (shapes.has("dots"))
    made.push({transform: [{filter: "datum.shape === 'dots' && !off[datum.name] && (datum.arrival === null || " +
      "(datum.arrival >= from && datum.arrival <= to))"}],
      mark: {type: "point", filled: true, size: 14, clip: true, tooltip: {content: "data"}},
      params: shapes.has("line") ? [] : [near], encoding: {...xy, color, opacity: {value: 0.6},
        size: shapes.has("line") ? {value: 14} : {condition: {param: "near", empty: false, value: 90}, value: 14}}});
  if (shapes.has("line") || shapes.has("steps"))
    made.push({transform: [{filter: "datum.shape !== 'rings' && isValid(datum.y) && !off[datum.name]"}],
      mark: {type: "point", size: 60, strokeWidth: 2, filled: false, clip: true, tooltip: {content: "data"}}, params: [near],
      encoding: {...xy, color, opacity: {condition: {param: "near", empty: false, value: 1}, value: 0}}});
  made.push(...chart.data.limits.flatMap(limit));
  const brush = {name: "brush", select: {type: "interval", encodings: chart.data.link ? ["x"] : ["x", "y"],
    mark: {fill: "var(--ink)", fillOpacity: 0.12, stroke: "var(--ink)", strokeOpacity: 0.5}, zoom: false, translate: false}};
  made[0].params = [...(made[0].params || []), brush];
  return made;
}

function specification(chart) {
  const soft = {labelColor: "var(--soft)", titleColor: "var(--ink)", gridColor: "var(--grid)", domainColor: "var(--line)",
    tickColor: "var(--line)", titleFontWeight: "normal", titleFontSize: 11, labelFontSize: 11, titlePadding: 6};
  const ends = Object.entries(chart.ends).map(([name, value]) => ({name, value}));
  return {
    $schema: "https://vega.github.io/schema/vega-lite/v6.json",
    width: "container", height: 176, autosize: {type: "fit-x", contains: "padding"}, background: null,
    params: [...ends, {name: "off", value: off}, {name: "from", value: -1e300}, {name: "to", value: 1e300}],
    data: {values: points(chart)},
    layer: layers(chart),
    config: {aria: false, font: getComputedStyle(document.body).fontFamily, view: {stroke: null}, axis: soft, mark: {invalid: "break-paths-show-domains"}},
  };
}

async function draw(chart) {
  const old = chart.figure.querySelector("svg");
  const place = element("div", "", null);
  place.className = "drawn";
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", old.getAttribute("aria-label"));
  old.after(place);
  const options = {ast: true, actions: false, renderer: "svg", tooltip: (_, event, item) => tell(chart, event, item)};
  const made = await vegaEmbed(place, specification(chart), options);
  chart.view = made.view;
  old.remove();
  let box = null;
  const keep = (_, value) => { if (value && Object.keys(value).length) box = value; };
  chart.view.addSignalListener("brush", keep);
  place.addEventListener("pointerdown", () => { box = null; });
  window.addEventListener("pointerup", () => {
    if (!box) return;
    const chosen = box;
    box = null;
    setTimeout(() => select(chart, chosen));
  });
  place.addEventListener("dblclick", () => select(chart, {}));
}

// --- a tooltip ------------------------------------------------------------------------------------------------------

const tip = element("div", "", document.body);
tip.id = "tip";
tip.hidden = true;

function tell(chart, event, item) {
  let datum = item && item.datum;
  while (datum && datum.datum) datum = datum.datum;
  if (!datum || datum.kind === undefined) { tip.hidden = true; return; }
  const {x, y, link} = chart.data;
  const next = datum.shape === "steps" ? chart.data.series.find((one) => one.kind === datum.kind).x[datum.place + 1] : null;
  const rows = typeof datum.behind === "number" ? told[datum.behind]
    : [[x.label, next ? `${shown(datum.x)} to ${shown(next)}` : shown(datum.x)], [y.label, shown(datum.y)]];
  tip.replaceChildren();
  if (datum.name) element("strong", datum.name, tip);
  if (typeof datum.behind === "string") element("p", datum.behind, tip);
  const table = element("table", "", tip);
  for (const [name, value] of rows) {
    const row = element("tr", "", table);
    element("th", name, row);
    element("td", value, row);
  }
  tip.hidden = false;
  const {clientX, clientY} = event;
  tip.style.left = `${Math.max(4, Math.min(clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${clientY + 16 + tip.offsetHeight > innerHeight ? clientY - tip.offsetHeight - 12 : clientY + 16}px`;
}

// --- a selected range -----------------------------------------------------------------------------------------------

function select(chart, box) {
  const together = chart.data.link ? charts.filter((one) => one.data.link === chart.data.link) : [chart];
  for (const one of together) {
    for (const letter of ["x", "y"]) {
      const whole = [one.data[letter].low, one.data[letter].high];
      if (letter === "y" && one !== chart) continue;
      const [low, high] = box[letter] ? [...box[letter]].sort((a, b) => a - b) : letter === "x" || !chart.data.link ? whole
        : [one.ends.y0, one.ends.y1];
      one.ends[`${letter}0`] = low;
      one.ends[`${letter}1`] = high;
    }
    one.button.hidden = !box.x;
    if (one.view) renew(one);
  }
  if (chart.data.link) {
    for (const one of charts) if (one.view)
      one.view.signal("from", box.x ? chart.ends.x0 : -1e300).signal("to", box.x ? chart.ends.x1 : 1e300).run();
  }
  list();
}

function renew(chart) {
  for (const [name, value] of Object.entries(chart.ends)) chart.view.signal(name, value);
  chart.view.signal("brush_x", [0, 0]);
  if (!chart.data.link) chart.view.signal("brush_y", [0, 0]);
  chart.view.run();
}

// --- the table of requests ------------------------------------------------------------------------------------------

let order = null; // {column, sign}

function selected() {
  const time = charts.find((one) => one.data.link === "time");
  let rows = arrivals.map((_, row) => row);
  if (time && !time.button.hidden) rows = rows.filter((row) => arrivals[row] >= time.ends.x0 && arrivals[row] <= time.ends.x1);
  for (const one of charts.filter((it) => !it.data.link && !it.button.hidden)) {
    const within = new Set(one.data.series.flatMap((own) => own.behind.filter((_, place) =>
      own.x[place] >= one.ends.x0 && own.x[place] <= one.ends.x1 && own.y[place] >= one.ends.y0 && own.y[place] <= one.ends.y1)));
    if (one.data.series.some((own) => own.behind.length)) rows = rows.filter((row) => within.has(row));
  }
  if (!order) {
    const [lost, ttft] = [column("lost to"), column("TTFT (s)")];
    return rows.sort((a, b) => (lost[b] !== "") - (lost[a] !== "") || (ttft[b] || 0) - (ttft[a] || 0));
  }
  const values = column(order.column);
  const below = (a, b) => (values[a] === null) - (values[b] === null) || (values[a] < values[b] ? -1 : values[a] > values[b] ? 1 : 0);
  return rows.sort((a, b) => order.sign * below(a, b));
}

function list() {
  if (!requests) return;
  const rows = selected();
  const chosen = charts.some((one) => !one.button.hidden);
  const of = requests.offered > arrivals.length ? ` of an even sample of ${arrivals.length.toLocaleString("en")}` : "";
  said.textContent = `${rows.length.toLocaleString("en")} requests${of} ${chosen ? "are selected" : "in all"}` +
    (rows.length > ROWS ? `, the first ${ROWS} shown` : "") + (order ? ". " : ", those that missed the SLO first. ") +
    "Drag over a picture to select a range, click twice to return; click a column to sort.";
  body.replaceChildren();
  for (const row of rows.slice(0, ROWS)) {
    const line = element("tr", "", body);
    for (const one of requests.columns) {
      const value = one.values[row];
      element("td", value === null ? "–" : shown(value), line).className = typeof value === "string" ? "" : "n";
    }
  }
}

let said, body;
function table() {
  const chapter = element("div", "", null);
  chapter.id = "behind";
  element("h3", "Requests", chapter);
  said = element("p", "", chapter);
  said.className = "note";
  const scroll = element("div", "", chapter);
  scroll.className = "scroll";
  scroll.tabIndex = 0;
  const made = element("table", "", scroll);
  const head = element("tr", "", element("thead", "", made));
  for (const one of requests.columns) {
    const cell = element("th", "", head);
    cell.scope = "col";
    cell.className = typeof one.values.find((value) => value !== null) === "number" ? "n" : "";
    const button = element("button", one.name, cell);
    button.onclick = () => {
      order = {column: one.name, sign: order && order.column === one.name ? -order.sign : -1};
      list();
    };
  }
  body = element("tbody", "", made);
  block.after(chapter);
}

// --- the page -------------------------------------------------------------------------------------------------------

function toggle(name) {
  off[name] = !off[name];
  for (const one of charts) {
    if (one.view) one.view.signal("off", {...off}).run();
    for (const item of one.figure.querySelectorAll(".legend button"))
      item.setAttribute("aria-pressed", String(!off[item.dataset.name]));
  }
}

function begin(source) {
  const figure = source.closest("figure");
  const chart = {figure, data: JSON.parse(source.textContent), names: {}, view: null};
  const {x, y} = chart.data;
  chart.ends = {x0: x.low, x1: x.high, y0: y.low, y1: y.high};
  for (const item of figure.querySelectorAll(".legend li")) {
    const name = item.textContent;
    if (!chart.data.series.some((one) => one.kind === item.dataset.kind)) continue;
    chart.names[item.dataset.kind] = name;
    const button = element("button", "", null);
    button.dataset.name = name;
    button.setAttribute("aria-pressed", "true");
    button.append(...item.childNodes);
    button.onclick = () => toggle(name);
    item.append(button);
  }
  chart.button = element("button", "whole range", figure.querySelector("figcaption"));
  chart.button.className = "whole";
  chart.button.hidden = true;
  chart.button.onclick = () => select(chart, {});
  charts.push(chart);
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some((one) => one.isIntersecting)) return;
    seen.disconnect();
    draw(chart);
  }, {rootMargin: "400px"});
  seen.observe(figure);
}

if (requests) table();
document.querySelectorAll("figure script.chart").forEach(begin);
list();
})();
