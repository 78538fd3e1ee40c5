// One run next to the best, or two that were picked: what differs, and why goodput was lost.
import {ask, bestOf, data, figure, label, rows, view} from "./state.js";
import {element, shown} from "./parts.js";

const LONG = 60_000; // requests from which a run is run again on request alone

const PARTS = {good_per_usd: ["goodput_rps", "usd_per_hour"], goodput_per_gpu: ["goodput_rps", "gpus"]}; // of a quotient

const dialog = () => document.getElementById("detail");

async function fill(place, path, waiting) {
  place.replaceChildren(element("p", {class: "note"}, waiting));
  try {
    place.innerHTML = await (await ask(path)).text(); // the server's own HTML, in which all words are escaped
  } catch (error) {
    place.replaceChildren(element("p", {class: "miss"}, error.message));
  }
}

function reason(key, isAutomatic) {
  const place = element("div", {class: "why"});
  const begin = () => fill(place, `/why?keys=${key}`, "It is being run again, which takes as long as the run did …");
  if (isAutomatic) begin();
  else place.append(element("button", {class: "act", onclick: begin}, "Run it again to see why"));
  return place;
}

export function open(keys) {
  const some = rows();
  const rank = figure(view.rank) ? view.rank : "goodput_rps";
  const best = bestOf(some, rank);
  const isAlone = keys.length === 1;
  const pair = isAlone && best >= 0 && data.keys[best] !== keys[0] ? [keys[0], data.keys[best]] : keys;
  const at = data.keys.indexOf(keys[0]);
  const title = element("h2", {id: "detail-title"}, isAlone ? label(at) : "Two runs side by side");
  const close = element("button", {class: "act close", "aria-label": "close", onclick: () => dialog().close()}, "×");
  const one = figure(rank);
  const said = [];
  if (isAlone && pair.length > 1) said.push(element("p", {}, `${one.words}: `, element("strong", {}, shown(one, at)), `; the best of the ${some.length.toLocaleString("en")} runs has `, element("strong", {}, shown(one, best)), `: ${label(best)}`));
  const parts = (PARTS[rank] || []).map(figure).filter(Boolean);
  if (isAlone && pair.length > 1 && parts.length) said.push(element("p", {}, `It has ${parts.map((part) => `${part.words} ${shown(part, at)}, the best ${shown(part, best)}`).join("; ")}.`));
  if (isAlone && pair.length === 1) said.push(element("p", {}, `The best of the ${some.length.toLocaleString("en")} runs: ${one.words} ${shown(one, at)}.`));
  const beside = element("div", {class: "beside"});
  fill(beside, `/run?keys=${pair.join(",")}`, "…");
  const isShort = keys.every((key) => !isLong(data.keys.indexOf(key)));
  const whys = keys.flatMap((key) => [element("h3", {}, isAlone ? "Why goodput was lost" : `Why goodput was lost: ${label(data.keys.indexOf(key))}`), reason(key, isShort && isAlone)]);
  const further = element("p", {class: "further"}, element("a", {href: `/page?keys=${keys[0]}`, target: "_blank", rel: "noopener"}, "page of the run"),
    pair.length > 1 ? element("a", {href: `/compare?keys=${pair.join(",")}`, target: "_blank", rel: "noopener"}, "both, request by request") : null);
  dialog().replaceChildren(element("div", {class: "sheet"}, element("div", {class: "top"}, title, close), ...said, further, ...whys, beside));
  if (!dialog().open) dialog().showModal();
  dialog().scrollTop = 0;
}

function isLong(row) {
  const requests = figure("offered");
  return !requests || requests.values[row] === null || requests.values[row] > LONG || Boolean(figure("capacity")?.values[row]);
}
