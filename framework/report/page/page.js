// The layer between the pictures of a page and Vega: a picture that comes into view is drawn again from its points.
const ROWS = 20; // of the table of requests
const charts = []; // {figure, data, names, view, ends, box, button}
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
  return Number.isInteger(value) || Math.abs(value) >= 999.5 ? Math.round(value).toLocaleString("en") : value.toPrecision(4);
}

function element(tag, content, parent) {
  const made = document.createElement(tag);
  made.textContent = content;
  if (parent) parent.append(made);
  return made;
}

async function draw(chart) {
  const old = chart.figure.querySelector("svg");
  const place = element("div", "", null);
  place.className = "drawn";
  old.after(place);
  const options = {ast: true, actions: false, renderer: "svg", tooltip: (_, event, item) => tell(chart, event, item)};
  const made = await vegaEmbed(place, specification(chart), options);
  chart.view = made.view;
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", old.getAttribute("aria-label"));
  place.removeAttribute("aria-roledescription");
  place.querySelector("svg").setAttribute("aria-hidden", "true");
  old.remove();
  chart.view.addSignalListener("brush", (_, value) => { if (value && Object.keys(value).length) chart.box = value; });
  place.addEventListener("pointerdown", () => { chart.box = null; });
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

// A finger that was put down and lifted does not move, so that nothing is said of the place: say that it moved there.
function touched({target, clientX, clientY}) {
  if (!target.closest(".drawn")) { tip.hidden = true; return; }
  setTimeout(() => target.dispatchEvent(new PointerEvent("pointermove", {clientX, clientY, bubbles: true})), 50);
}

window.addEventListener("pointerup", (event) => {
  const chart = charts.find((one) => one.box);
  if (!chart) { if (event.pointerType === "touch") touched(event); return; }
  const box = chart.box;
  chart.box = null;
  tip.hidden = true;
  setTimeout(() => select(chart, box));
});
window.addEventListener("scroll", () => { tip.hidden = true; }, {passive: true});

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
  const sampled = requests.offered > arrivals.length;
  const all = sampled ? `${arrivals.length.toLocaleString("en")} that stand for ${requests.offered.toLocaleString("en")}` : "all";
  said.textContent = `${rows.length.toLocaleString("en")} requests ${chosen ? `selected of ${all}` : sampled ? `of ${
    requests.offered.toLocaleString("en")}, evenly spread` : "in all"}` +
    (rows.length > ROWS ? `, the first ${ROWS} shown` : "") + (order ? ". " : ", those that missed the SLO first. ") +
    "Drag over a picture to select a range, click twice to return; click a column to sort.";
  const longest = {};
  for (const one of requests.columns) {
    const ends = rows.slice(0, ROWS).map((row) => typeof one.values[row] === "number" ? shown(one.values[row]) : "")
      .map((text) => text.includes(".") ? text.slice(text.indexOf(".")) : "");
    longest[one.name] = ends.reduce((long, end) => end.length > long.length ? end : long, "");
  }
  body.replaceChildren();
  for (const row of rows.slice(0, ROWS)) {
    const line = element("tr", "", body);
    for (const one of requests.columns) {
      const value = one.values[row];
      const text = value === null ? "–" : shown(value);
      const cell = element("td", text, line);
      cell.className = typeof value === "string" ? "" : "n";
      const behind = text.includes(".") ? text.slice(text.indexOf(".")) : "";
      if (value !== null && longest[one.name].length > behind.length) cell.dataset.pad = longest[one.name].slice(behind.length).replace(/\d/g, "0");
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
  const chart = {figure, data: JSON.parse(source.textContent), names: {}, view: null, box: null};
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
