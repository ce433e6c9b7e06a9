// The transactions: the hung ones on top, those under way, and the last that ended.

import * as api from "./api.js";
import { askToAbort } from "./abort.js";
import { element, reconcile, setText, show } from "./dom.js";
import { age, bytes, count, duration, many, rate, timeOfDay } from "./format.js";
import { announce } from "./notices.js";
import { holdings, placements } from "./places.js";
import { mayOperate } from "./signing_in.js";
import { fromAges, fromStarts, track } from "./track.js";

/** Younger ones come and go between two looks; they are counted, and not shown one by one. */
const SHOWN_FROM_MS = 1000;

const section = document.getElementById("view-transactions");
const hungList = document.getElementById("hung-list");
const liveList = document.getElementById("live-list");
const endedList = document.getElementById("ended-list");
const cardsOf = (list) => list.querySelector(".cards");

let latest = null;
let latestAt = 0;
let endedShown = [];
let committedBefore = null;
let hungBefore = new Set();

export async function refresh() {
  const view = await api.transactions();
  latest = view;
  latestAt = performance.now();
  figures(view);
  announceHung(view);
  ended(view);
  tick();
}

/** Let the times run on between two answers. */
export function tick() {
  if (latest === null) return;
  const laterMs = performance.now() - latestAt;
  const shown = latest.live.filter((each) => each.age_ms + laterMs >= SHOWN_FROM_MS);
  const hung = shown.filter((each) => each.hung);
  const others = shown.filter((each) => !each.hung);
  const make = () => liveCard();
  const update = (items) => items.map((item) => ({ item, laterMs }));
  reconcile(cardsOf(hungList), update(hung), keyOf, make);
  reconcile(cardsOf(liveList), update(others), keyOf, make);
  show(hungList, hung.length > 0);
  show(liveList.querySelector(".empty"), others.length === 0);
  const young = latest.open + latest.preparing + latest.copying - shown.length;
  setText(document.getElementById("young"), young > 0 ? `and ${count(young)} not listed, mostly younger than a second` : "");
}

const keyOf = ({ item }) => `${item.transactional_id} ${item.transaction}`;

// --- figures ---------------------------------------------------------------------------------------

function figures(view) {
  const since = view.since_start.committed;
  let perSecond = null;
  if (committedBefore !== null && since >= committedBefore.count) {
    perSecond = (since - committedBefore.count) / ((latestAt - committedBefore.at) / 1000);
  }
  committedBefore = { count: since, at: latestAt };
  figure("hung", count(view.hung), view.hung > 0);
  figure("open", count(view.open));
  figure("deciding", count(view.preparing));
  figure("copying", count(view.copying));
  figure("rate", perSecond === null ? "–" : rate(perSecond));
}

function figure(name, text, alarming = false) {
  const item = section.querySelector(`[data-figure="${name}"]`);
  setText(item.firstElementChild, text);
  item.classList.toggle("alarming", alarming);
}

function announceHung(view) {
  const hung = new Set(view.live.filter((each) => each.hung).map((each) => each.transactional_id));
  const fresh = [...hung].filter((id) => !hungBefore.has(id));
  if (fresh.length === 1) announce(`The transaction of ${fresh[0]} hangs.`);
  else if (fresh.length > 1) announce(`${fresh.length} more transactions hang.`);
  hungBefore = hung;
}

// --- one under way ---------------------------------------------------------------------------------

function liveCard() {
  const id = element("code", { class: "id" });
  const badge = element("span", { class: "badge" });
  const button = element("button", { type: "button", class: "danger" }, "Abort …");
  const facts = element("p", { class: "facts-line" });
  const way = track();
  const held = element("p", { class: "held" });
  const parts = holdings();
  const head = element("div", { class: "card-head" }, badge, id, button);
  const card = element("li", { class: "card" }, head, facts, way, held, parts);
  let current = null;
  button.addEventListener("click", () => askToAbort(current, button));
  card.update = ({ item, laterMs }) => {
    current = item;
    const open = item.state === "BEGIN";
    setText(id, item.transactional_id);
    setText(badge, item.hung ? "hung" : open ? "open" : item.state === "DECIDED" ? "copying" : "committing");
    card.dataset.kind = item.hung ? "hung" : "live";
    show(button, open && mayOperate());
    button.setAttribute("aria-label", `Abort the transaction of ${item.transactional_id} …`);
    setText(facts, facets(item, laterMs).join(" · "));
    way.update(fromAges(item.steps, laterMs), true);
    const pinned = item.pinned_bytes ? `, ${bytes(item.pinned_bytes)} of journal kept for it` : "";
    setText(held, `${many(item.records, "record")} in ${many(item.partitions_total, "partition")}${pinned}`);
    parts.update(item.partitions, item.partitions_total);
  };
  return card;
}

function facets(item, laterMs) {
  const facts = [`transaction ${item.transaction}`];
  if (item.state !== "BEGIN") return facts;
  facts.push(`silent for ${age(item.silent_ms + laterMs)}`);
  const left = item.timeout_ms - item.age_ms - laterMs;
  facts.push(left > 0 ? `times out in ${age(left)}` : "times out at the next look");
  return facts;
}

// --- those that ended --------------------------------------------------------------------------------

function ended(view) {
  const cards = cardsOf(endedList);
  // Whoever looks into one does not want it to move: the list is held, and says how much is newer.
  const looking = cards.querySelector("details[open]") !== null || cards.contains(document.activeElement);
  if (looking) {
    const known = new Set(endedShown.map(endedKey));
    const newer = view.ended.filter((each) => !known.has(endedKey(each))).length;
    setText(document.getElementById("held"), newer ? `held while you look; ${newer === 50 ? "50 or more" : newer} newer` : "");
    return;
  }
  endedShown = view.ended;
  setText(document.getElementById("held"), "");
  reconcile(cards, endedShown, endedKey, endedCard);
  show(endedList.querySelector(".empty"), endedShown.length === 0);
}

const endedKey = (item) => `${item.transaction} ${item.ended_ms}`;

const CAUSES = {
  end_abort: "by its producer",
  timed_out: "it took longer than its time-out",
  forced: "by an operator",
  init: "a new instance of its producer has begun",
  refused: "a partition did not hold what it should",
  restarted: "the node was restarted",
  withdrawn: "its records did not survive the last stop",
};

function endedCard(item) {
  const committed = item.outcome === "committed";
  const head = element(
    "div",
    { class: "card-head" },
    element("span", { class: "badge" }, item.outcome),
    element("code", { class: "id" }, item.transactional_id),
    element("span", { class: "dim when" }, timeOfDay(item.ended_ms)),
  );
  const way = track();
  way.update(fromStarts(item.steps), false);
  const last = item.steps[item.steps.length - 1];
  const total = item.steps.length > 1 ? ` · ${duration(last.after_ms)} in all` : "";
  const why = committed ? "" : ` · ${CAUSES[item.cause] ?? item.cause}`;
  const facts = element("p", { class: "facts-line" }, `transaction ${item.transaction}${total}${why}`);
  return Object.assign(element("li", { class: "card", data: { kind: item.outcome } }, head, facts, way, where(item)), {
    update: () => {},
  });
}

function where(item) {
  if (item.outcome !== "committed") {
    return element("p", { class: "held" }, `had written to ${many(item.partitions_total, "partition")}; nothing of it is visible`);
  }
  if (!item.placements.length) return element("p", { class: "held" }, "it had no records");
  const summary = `${many(item.records, "record")} in ${many(item.partitions_total, "partition")}`;
  return element(
    "details",
    { class: "held" },
    element("summary", { "aria-label": `${summary} of ${item.transactional_id}: where they are` }, summary),
    placements(item.placements, item.partitions_total),
  );
}

// --- one id ----------------------------------------------------------------------------------------

const found = document.getElementById("found");

document.getElementById("find").addEventListener("submit", async (event) => {
  event.preventDefault();
  const id = document.getElementById("find-id").value;
  try {
    found.replaceChildren(describe(await api.transactionalId(id)));
  } catch (error) {
    const sentence = error instanceof api.Refused ? error.message : "The node does not answer.";
    found.replaceChildren(element("p", { class: "empty" }, sentence));
  }
});

const STATES = {
  EMPTY: "nothing is open",
  OPEN: "a transaction is open",
  PREPARING: "a transaction is being committed",
  MUST_ABORT: "the node has aborted its transaction; its producer has yet to notice",
};

function describe(id) {
  const facts = [STATES[id.state] ?? id.state, `producer ${id.producer_id}, epoch ${id.producer_epoch}`];
  facts.push(`time-out ${age(id.timeout_ms)}`);
  const rows = id.committed.map((each) =>
    element(
      "li",
      {},
      element("h4", {}, `transaction ${each.transaction}`, element("small", {}, many(each.records, "record"))),
      placements(each.placements, each.partitions_total),
    ),
  );
  const list = rows.length
    ? element("ul", { class: "committed" }, ...rows)
    : element("p", { class: "empty" }, "No committed transaction of it is remembered.");
  return element("div", { class: "answer" }, element("p", {}, element("code", {}, id.transactional_id), ` ${facts.join(" · ")}`), list);
}
