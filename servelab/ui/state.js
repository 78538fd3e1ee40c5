// The runs as columns, what of them is looked at, and the rows that remain.
export const data = {epoch: 0, keys: [], settings: [], figures: new Map(), known: [], slo: [], states: []};
export const PREFERRED = ["goodput_rps", "goodput_per_gpu", "good_per_usd"]; // figures that rank
const DEFAULT = {
  filters: {}, bounds: {}, rank: "goodput_rps", ascending: false, tab: "table", page: 0, group: [], hidden: [], added: [],
  pivot: {rows: "", columns: "", figure: "goodput_rps", how: "best"}, pareto: {x: "usd_per_hour", y: "goodput_rps"},
};
export const view = {...structuredClone(DEFAULT), ...remembered()};

// What the address says, as far as it has the form that this page writes.
function remembered() {
  const found = {};
  try {
    const said = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
    for (const [name, usual] of Object.entries(DEFAULT))
      if (typeof said[name] === typeof usual && said[name] !== null && Array.isArray(said[name]) === Array.isArray(usual))
        found[name] = said[name];
  } catch { return {}; }
  return found;
}

export function remember() {
  const own = Object.fromEntries(Object.entries(view).filter(([name, one]) => JSON.stringify(one) !== JSON.stringify(DEFAULT[name])));
  const words = Object.keys(own).length ? `#${encodeURIComponent(JSON.stringify(own))}` : location.pathname;
  history.replaceState(null, "", words);
}

export async function ask(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer;
}

// --- loading --------------------------------------------------------------------------------------------------------

// Read the runs that have come; all of them if what was read no longer holds.
export async function load() {
  const wanted = [...new Set([...data.figures.keys(), ...needed()])].filter((key) => !data.known.length || has(key));
  const since = data.epoch ? data.keys.length : 0;
  const answer = await (await ask(`/runs?epoch=${data.epoch}&since=${since}&figures=${wanted.join(",")}`)).json();
  if (answer.since !== since || answer.since === 0) Object.assign(data, {keys: [], settings: [], figures: new Map()});
  data.epoch = answer.epoch;
  data.known = answer.known;
  data.slo = answer.slo;
  data.states = answer.states;
  data.keys.push(...answer.keys);
  for (const one of answer.settings) {
    const before = data.settings.find((other) => other.name === one.name);
    if (before) before.values = one.values, before.codes.push(...one.codes);
    else data.settings.push(one);
  }
  for (const one of answer.figures) {
    const before = data.figures.get(one.key);
    if (before) before.values.push(...one.values);
    else data.figures.set(one.key, one);
  }
  for (const one of data.figures.values()) while (one.values.length < data.keys.length) one.values.push(null);
}

export async function require(keys) {
  const missing = keys.filter((key) => has(key) && !data.figures.has(key));
  if (!missing.length) return;
  const answer = await (await ask(`/runs?epoch=${data.epoch}&since=0&figures=${missing.join(",")}`)).json();
  if (answer.epoch !== data.epoch) { await load(); return; }
  for (const one of answer.figures) data.figures.set(one.key, {...one, values: one.values.slice(0, data.keys.length)});
}

const has = (key) => data.known.some((one) => one.key === key);

// The figures that the present view needs beyond those of the table, which the server names.
function needed() {
  const {rank, bounds, pivot, pareto, added} = view;
  const more = [rank, ...Object.keys(bounds), pivot.figure, pareto.x, pareto.y, ...added];
  return [...PREFERRED, "slo_attainment", "p99_ttft_ms", "p99_tpot_ms", "usd_per_million_good_tokens", "usd_per_hour", "gpus",
    ...more].filter((key) => typeof key === "string" && /^\w[\w@.-]*$/.test(key));
}

// --- rows -----------------------------------------------------------------------------------------------------------

export const setting = (name) => data.settings.find((one) => one.name === name);
export const figure = (key) => data.figures.get(key);
export const word = (one, row) => one.values[one.codes[row]];
export const isBetter = (one, a, b) => one.better < 0 || (one.better === 0 && one.key === "gpus") ? a < b : a > b;

// The rows that all filters keep, but for the one of a setting.
export function rows(but = "") {
  const tests = [];
  for (const [name, chosen] of Object.entries(view.filters)) {
    const one = setting(name);
    if (!one || name === but || !Array.isArray(chosen) || !chosen.length) continue;
    const kept = one.values.map((value) => chosen.includes(value));
    tests.push((row) => kept[one.codes[row]]);
  }
  for (const [key, bound] of Object.entries(view.bounds)) {
    const one = figure(key);
    if (!one || !bound) continue;
    const [low, high] = [bound.min, bound.max].map((end) => (typeof end === "number" ? end / one.scale : null));
    if (low !== null) tests.push((row) => one.values[row] !== null && one.values[row] >= low - 1e-12);
    if (high !== null) tests.push((row) => one.values[row] !== null && one.values[row] <= high + 1e-12);
  }
  const found = [];
  for (let row = 0; row < data.keys.length; row++) if (tests.every((test) => test(row))) found.push(row);
  return found;
}

export function bestOf(some, key) {
  const one = figure(key);
  let best = -1;
  if (one) for (const row of some)
    if (one.values[row] !== null && (best < 0 || isBetter(one, one.values[row], one.values[best]))) best = row;
  return best;
}

export const varying = (some) => data.settings.filter((one) => some.some((row) => one.codes[row] !== one.codes[some[0]]));

// A run in a few words: its policy, and the other settings in which it differs from the rest.
export function label(row) {
  return data.settings.filter((one) => !["load_state", "SLO"].includes(one.name)).slice(0, 7).map((one) => {
    const value = word(one, row);
    return one.name === "policy" ? value : value === "–" ? "" : `${one.name.split(".").pop()}=${value}`;
  }).filter(Boolean).join(" ") || data.keys[row].slice(0, 12);
}
