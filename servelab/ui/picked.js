// The two runs that are picked for a comparison.
import {data, label} from "./state.js";
import {element} from "./parts.js";
import {open} from "./detail.js";

let picked = [];
export const isPicked = (key) => picked.includes(key);

export function pick(key) {
  picked = isPicked(key) ? picked.filter((one) => one !== key) : [...picked, key].slice(-2);
  show();
}

function show() {
  const place = document.getElementById("picked");
  place.hidden = !picked.length;
  document.body.classList.toggle("picking", Boolean(picked.length));
  const names = picked.map((key) => element("span", {}, label(data.keys.indexOf(key))));
  place.replaceChildren(...names, picked.length === 2 ? element("button", {class: "act", onclick: () => open(picked)}, "Compare") : element("span", {}, "pick one more to compare"),
    element("button", {class: "link", onclick: () => { picked = []; show(); }}, "clear"));
  for (const box of document.querySelectorAll("table.runs tbody input[type=checkbox]")) box.checked = isPicked(box.closest("tr").dataset.key);
}
