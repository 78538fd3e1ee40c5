// Two figures of every run, and the runs that no other one equals or beats in both.
import {data, figure, isBetter, label, require, view} from "./state.js";
import {aligned, element, scrolled, select, shown, whole} from "./parts.js";
import {open} from "./detail.js";

const MOST_SVG = 1500; // points beyond which they are painted instead of drawn

export function frontOf(some, x, y) {
  const known = some.filter((row) => x.values[row] !== null && y.values[row] !== null);
  const before = (one, a, b) => (one.values[a] === one.values[b] ? 0 : isBetter(one, one.values[a], one.values[b]) ? -1 : 1);
  const found = [];
  for (const row of [...known].sort((a, b) => before(x, a, b) || before(y, a, b)))
    if (!found.length || isBetter(y, y.values[row], y.values[found.at(-1)])) found.push(row);
  return {known, front: found};
}

let embedding = null;
function library() {
  embedding ??= new Promise((done, fail) => {
    document.head.append(element("script", {src: "/vega.js", onload: () => (window.vegaEmbed ? done(window.vegaEmbed) : fail(new Error("none"))), onerror: () => fail(new Error("none"))}));
  });
  return embedding;
}

function specification(x, y, known, front, size) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const point = (row) => ({x: x.values[row] * x.scale, y: y.values[row] * y.scale, row, [x.words]: shown(x, row), [y.words]: shown(y, row), run: label(row)});
  const channel = (name, one) => ({field: name, type: "quantitative", scale: {zero: false, nice: true, padding: 8}, axis: {title: one.words, tickCount: 6}});
  const xy = {x: channel("x", x), y: channel("y", y)};
  const tooltip = [x.words, y.words, "run"].map((field) => ({field: field.replace(/[.[\]\\]/g, "\\$&"), type: "nominal", title: field}));
  const axis = {labelColor: colour("soft"), titleColor: colour("ink"), gridColor: colour("grid"), domainColor: colour("line"), ticks: false, titleFontWeight: "normal", titleFontSize: 12, labelFontSize: 11};
  return {
    $schema: "https://vega.github.io/schema/vega-lite/v6.json",
    width: size, height: Math.min(420, Math.max(240, size * 0.55)), background: null, autosize: {type: "fit", contains: "padding"},
    layer: [
      {data: {values: known.map(point)}, mark: {type: "point", filled: true, size: known.length > 2000 ? 14 : 28, opacity: known.length > 2000 ? 0.35 : 0.6, color: colour("c0"), cursor: "pointer"}, encoding: {...xy, tooltip}},
      {data: {values: front.map(point)}, mark: {type: "line", color: colour("c1"), strokeWidth: 1.8}, encoding: {...xy, order: {field: "x", type: "quantitative"}}},
      {data: {values: front.map(point)}, mark: {type: "point", filled: true, shape: "diamond", size: 90, opacity: 1, color: colour("c1"), cursor: "pointer"}, encoding: {...xy, tooltip}},
    ],
    config: {aria: false, font: getComputedStyle(document.body).fontFamily, view: {stroke: null}, axis},
  };
}

async function draw(place, x, y, known, front) {
  const embed = await library();
  const options = {ast: true, actions: false, renderer: known.length > MOST_SVG ? "canvas" : "svg", tooltip: {theme: "custom"}};
  const {view: made} = await embed(place, specification(x, y, known, front, Math.min(980, place.clientWidth)), options);
  made.addEventListener("click", (_, item) => { if (item?.datum?.row !== undefined) open([data.keys[item.datum.row]]); });
  for (const drawn of place.querySelectorAll("svg,canvas")) drawn.setAttribute("aria-hidden", "true");
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", `${y.words} against ${x.words} of ${known.length} runs; the table has the front`);
}

export function pareto(place, some, renew) {
  const {pareto: own} = view;
  const options = data.known.filter((one) => one.better || one.key === "gpus").map((one) => [one.key, one.words]);
  const choose = (name) => async (chosen) => { own[name] = chosen; await require([chosen]); renew(); };
  const bar = element("div", {class: "fields"}, select("across", options, own.x, choose("x")), select("up", options, own.y, choose("y")));
  const [x, y] = [figure(own.x), figure(own.y)];
  if (!x || !y) { place.replaceChildren(bar, element("p", {}, "No run has these figures.")); return; }
  const {known, front} = frontOf(some, x, y);
  const way = (one) => `${isBetter(one, 1, 0) ? "higher" : "lower"} ${one.words.replace(/ \(.*/, "")}`;
  const said = `${whole(front.length)} of ${whole(known.length)} runs are on the front: no other equals them in both and has a ${way(x)} or a ${way(y)}. A click on a point opens its run.`;
  const columns = [x, y].map((one) => aligned(front.map((row) => shown(one, row)), front.map((row) => one.values[row])));
  const lines = front.map((row, at) => element("tr", {}, element("td", {}, element("button", {class: "link", onclick: () => open([data.keys[row]])}, label(row))), columns[0][at], columns[1][at]));
  const head = element("tr", {}, element("th", {scope: "col"}, "on the front"), ...[x, y].map((one) => element("th", {scope: "col", class: "n"}, one.words)));
  const picture = element("div", {class: "picture"});
  place.replaceChildren(bar, element("p", {class: "note"}, said), picture, scrolled("Runs on the front", element("table", {class: "runs"}, element("thead", {}, head), element("tbody", {}, ...lines))));
  draw(picture, x, y, known, front).catch(() => picture.replaceChildren(element("p", {class: "note"}, "The picture needs a package: pip install 'servelab[pages]'.")));
}
