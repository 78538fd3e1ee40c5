// From the points of a picture to the terms of Vega-Lite.
const INK = {kept: "var(--c0)", missed: "var(--c1)"};

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
    const more = one.shape !== "trend" ? {width: 1.8} : {low: one.low[place], high: one.high[place],
      hollow: one.hollow[place], mark: one.mark, width: one.width, size: one.size};
    return {...more, x, y: one.y[place], shape: one.shape, kind: one.kind, name: chart.names[one.kind] || "", behind, arrival, place};
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
  const line = {type: "line", clip: true, strokeJoin: "round"};
  const strokeWidth = {field: "width", type: "quantitative", scale: null, legend: null};
  const raw = (field, type) => ({field, type, scale: null, legend: null});
  const fill = {...color, condition: {test: "datum.hollow", value: "var(--paper)"}};
  const made = [];
  if (shapes.has("line")) made.push({...only("line"), mark: line, encoding: {...xy, color, strokeDash, strokeWidth}});
  if (shapes.has("steps"))
    made.push({...only("steps"), mark: {...line, interpolate: "step-after"}, encoding: {...xy, color, strokeDash, strokeWidth}});
  if (shapes.has("trend"))
    for (const kind of kinds) {
      const own = [...only("trend").transform, {filter: `datum.kind === '${kind}'`}];
      const between = [...own, {filter: "isValid(datum.low) && datum.high > datum.low"}];
      made.push({transform: own, mark: line, encoding: {...xy, color, strokeDash, strokeWidth}});
      made.push({transform: between, mark: {type: "rule", clip: true, strokeWidth: 1.2},
        encoding: {x: xy.x, y: {...xy.y, field: "low"}, y2: {field: "high"}, color}});
      const inside = [...own, {filter: "datum.x >= x0 && datum.x <= x1 && datum.y >= y0 && datum.y <= y1"}];
      made.push({transform: inside, mark: {type: "point", filled: true, opacity: 1, strokeWidth: 1.4},
        encoding: {...xy, fill, stroke: color, shape: raw("mark", "nominal"), size: raw("size", "quantitative")}});
    }
  if (shapes.has("dots"))
    made.push({transform: [{filter: "datum.shape === 'dots' && !off[datum.name] && (datum.arrival === null || " +
      "(datum.arrival >= from && datum.arrival <= to))"}],
      mark: {type: "point", filled: true, size: 14, clip: true, tooltip: {content: "data"}},
      params: shapes.size > 1 ? [] : [near], encoding: {...xy, color, opacity: {value: 0.6},
        size: shapes.size > 1 ? {value: 14} : {condition: {param: "near", empty: false, value: 90}, value: 14}}});
  if (shapes.has("line") || shapes.has("steps") || shapes.has("trend"))
    made.push({transform: [{filter: "isValid(datum.y) && !off[datum.name]"}],
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
