// Elements, numbers and tables.
export function element(tag, attributes = {}, ...content) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...content.filter((one) => one !== null && one !== undefined));
  return made;
}

export const whole = (value) => Math.round(value).toLocaleString("en");

// Three significant digits, more only before the point.
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) || Math.abs(value) >= 999.5) return whole(value);
  return value.toPrecision(3).includes("e") ? value.toPrecision(3) : String(value.toPrecision(3));
}

export const shown = (one, row) => number(one.values[row] === null ? null : one.values[row] * one.scale);

// Cells of numbers whose points stand below each other.
export function aligned(texts, raw) {
  const ends = texts.map((text) => (text.includes(".") && !text.includes("e") ? text.slice(text.indexOf(".")) : ""));
  const longest = ends.reduce((long, end) => (end.length > long.length ? end : long), "").replace(/\d/g, "0");
  return texts.map((text, place) => {
    const cell = element("td", {class: "n"});
    const pad = text === "–" ? "" : longest.slice(ends[place].length);
    if (pad) cell.dataset.pad = pad;
    cell.append(raw[place] === null ? text : element("data", {value: String(raw[place])}, text));
    return cell;
  });
}

export function select(words, options, value, change, id) {
  const field = element("select", {id, onchange: () => change(field.value)},
    ...options.map(([own, text]) => element("option", {value: own, selected: own === value}, text)));
  return element("label", {class: "field"}, element("span", {}, words), field);
}

export function scrolled(label, table) {
  return element("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": label}, table);
}

// A menu of check boxes. `options`: [value, words, count].
export function menu(title, said, options, chosen, change) {
  const list = element("ul", {class: "checks"});
  for (const [value, words, count] of options) {
    const box = element("input", {type: "checkbox", checked: chosen.includes(value)});
    box.checked = chosen.includes(value);
    box.addEventListener("change", () => change(value, box.checked));
    const amount = count === null || count === undefined ? null : element("small", {}, ` ${whole(count)}`);
    list.append(element("li", {}, element("label", {}, box, ` ${words}`, amount)));
  }
  return element("details", {class: "menu", name: "menu"},
    element("summary", {}, title, said ? element("small", {}, ` ${said}`) : null), element("div", {class: "drop"}, list));
}
