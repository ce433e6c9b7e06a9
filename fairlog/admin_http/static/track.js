// A transaction's way through its states, as a list of steps with the time spent in each.

import { element, setText } from "./dom.js";
import { age, duration } from "./format.js";

const COMMIT = ["BEGIN", "PREPARE_COMMIT", "DECIDED", "COPIED", "COMMITTED"];

/** Records of the group journal are written as they stand there; what only happens is in lower case. */
const NAMES = { DECIDED: "decided", COPIED: "copied" };

/** An empty track; `update(steps, live)` fills it. */
export function track() {
  const list = element("ol", { class: "track" });
  list.update = (steps, live) => update(list, steps, live);
  return list;
}

/**
 * `steps` are [{step, took_ms}] in order; the last one's time still runs if `live`. Steps to come are shown as such,
 * unless the way has ended.
 */
function update(list, steps, live) {
  const happened = new Map(steps.map((each) => [each.step, each]));
  const last = steps.length ? steps[steps.length - 1].step : null;
  const names = live ? COMMIT : steps.map((each) => each.step);
  if (list.dataset.names !== names.join()) {
    list.dataset.names = names.join();
    list.replaceChildren(...names.map(step));
  }
  names.forEach((name, index) => {
    const item = list.children[index];
    const here = happened.get(name);
    const state = here === undefined ? "todo" : live && name === last ? "now" : "done";
    if (item.dataset.state !== state) {
      item.dataset.state = state;
      if (state === "now") item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
    }
    const took = here?.took_ms ?? null;
    setText(item.lastElementChild, took === null ? "" : state === "now" && took >= 1000 ? age(took) : duration(took));
  });
}

function step(name) {
  const title = element("span", { class: "name" }, NAMES[name] ?? name);
  return element("li", { data: { step: name } }, title, element("span", { class: "took" }));
}

/** From steps that say how long ago they were. `later_ms` has passed since the node said so. */
export function fromAges(steps, laterMs) {
  return steps.map((each, index) => {
    const next = steps[index + 1];
    return { step: each.step, took_ms: next === undefined ? each.ago_ms + laterMs : each.ago_ms - next.ago_ms };
  });
}

/** From steps that say how long after the first they were; the last one is the end. */
export function fromStarts(steps) {
  return steps.map((each, index) => {
    const next = steps[index + 1];
    return { step: each.step, took_ms: next === undefined ? null : next.after_ms - each.after_ms };
  });
}
