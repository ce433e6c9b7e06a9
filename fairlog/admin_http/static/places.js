// Lists of partitions: what they hold of a transaction, and where its records are.

import { element, reconcile, setText } from "./dom.js";
import { count, many, place } from "./format.js";

const CHIPS_MAX = 12;

/** What partitions hold of an open transaction; `update(partitions, total)` fills it. */
export function holdings() {
  const list = element("ul", { class: "chips" });
  list.update = (partitions, total) => {
    const shown = partitions.slice(0, CHIPS_MAX);
    const items = total > shown.length ? [...shown, { more: total - shown.length }] : shown;
    reconcile(list, items, (each) => (each.more ? "more" : place(each)), chip);
  };
  return list;
}

function chip(item) {
  if (item.more) {
    const more = element("li");
    more.update = (each) => setText(more, `and ${count(each.more)} more`);
    return more;
  }
  const records = element("b");
  const made = element("li", {}, element("code", {}, place(item)), " ", records);
  made.update = (each) => setText(records, count(each.records));
  return made;
}

/** Where a committed transaction's records are. */
export function placements(list, total) {
  const items = list.map((each) => {
    const last = each.base_offset + each.count - 1;
    const offsets = each.count === 1 ? `offset ${count(last)}` : `offsets ${count(each.base_offset)} – ${count(last)}`;
    return element(
      "li",
      {},
      element("code", {}, place(each)),
      element("span", {}, offsets),
      element("span", { class: "dim" }, many(each.count, "record")),
    );
  });
  if (total > list.length) items.push(element("li", { class: "dim" }, `and ${many(total - list.length, "more partition")}`));
  return element("ul", { class: "places" }, ...items);
}
