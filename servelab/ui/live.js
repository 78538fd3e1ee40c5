// What runs now, asked for every two seconds while the page is in view.
import {ask, data} from "./state.js";
import {element, whole} from "./parts.js";

const EVERY_MS = 2000;

function duration(seconds) {
  if (seconds < 0) return "";
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min ${rest} s` : `${rest} s`;
}

function one(running) {
  const {what, unit, done, total, failed, best, time_left_s: left, host, told_s: told} = running;
  const counts = [total ? `${whole(done)} of ${whole(total)} ${unit}` : `${whole(done)} ${unit}`, failed ? `${whole(failed)} failed` : "",
    best ? `best so far ${best}` : "", left >= 0 ? `${duration(left)} left` : "", `on ${host}`].filter(Boolean);
  const silent = Date.now() / 1000 - told;
  if (silent > 30) counts.push(`silent for ${duration(silent)}`);
  const bar = total ? element("progress", {max: total, value: done, "aria-label": what}) : null;
  return element("div", {class: "running"}, element("strong", {}, what), bar, element("span", {}, counts.join(", ")));
}

// `renew(hasMore)` is called with each answer.
export async function follow(renew) {
  const place = document.getElementById("live");
  for (;;) {
    if (!document.hidden) {
      try {
        const said = await (await ask("/live")).json();
        place.hidden = !said.running.length && !said.trouble.length;
        place.replaceChildren(...said.running.map(one), ...said.trouble.map((line) => element("p", {class: "miss"}, line)));
        await renew(said.epoch !== data.epoch || said.runs > data.keys.length);
      } catch {
        place.hidden = false;
        place.replaceChildren(element("p", {class: "miss"}, "The server does not answer; servelab ui starts it again."));
      }
    }
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
}
