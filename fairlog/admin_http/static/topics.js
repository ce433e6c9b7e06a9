// Topics with their partitions: where they begin and end, how large they are, how fast they grow.

import * as api from "./api.js";
import { reconcile, setText, show } from "./dom.js";
import { bytes, count, rate } from "./format.js";
import { fillTable, foldingRow } from "./table.js";

const LABELS = ["topic", "partitions", "records", "per second", "size", "journal", "transactions"];
const NUMERIC = [false, true, true, true, true, true, false];

const rows = document.getElementById("topics-rows");
const contains = document.getElementById("topics-contains");
const more = document.getElementById("topics-more");
const empty = document.getElementById("topics-empty");

let pages = 1;
let asked = 0;
/** The sum of a topic's ends, and when it was so: what the rate is made from. */
const ends = new Map();

export async function refresh() {
  const number = ++asked;
  const topics = [];
  let after = "";
  let page;
  for (let each = 0; each < pages && after !== null; each += 1) {
    page = await api.topics(contains.value, after);
    topics.push(...page.topics);
    after = page.next_after;
  }
  if (number !== asked) return;
  const now = performance.now();
  reconcile(rows, topics, (topic) => topic.topic_id, () => topicRow(now));
  show(more, after !== null);
  setText(document.getElementById("topics-total"), `${count(topics.length)} of ${count(page.total)}`);
  setText(empty, contains.value ? "No topic has this in its name." : "There are no topics yet. They are made when a client first writes to them.");
  show(empty, topics.length === 0);
}

function topicRow() {
  const row = foldingRow(LABELS, NUMERIC);
  row.update = (topic) => {
    row.set(
      [
        topic.name,
        partitions(topic),
        count(topic.records),
        growth(topic),
        bytes(topic.size_bytes),
        bytes(topic.journal_bytes),
        topic.transactions,
      ],
      (details) =>
        fillTable(
          details,
          ["partition", "first offset", "high watermark", "last stable offset", "open", "size", "journal"],
          [...topic.partitions, ...topic.elsewhere].sort((a, b) => a.partition - b.partition).map(partitionRow),
        ),
    );
  };
  return row;
}

function partitionRow(each) {
  if ("leader" in each) return [String(each.partition), `led by broker ${each.leader}`, "–", "–", "–", "–", "–"];
  return [
    String(each.partition),
    count(each.log_start),
    count(each.high_watermark),
    count(each.last_stable_offset),
    count(each.open_transactions),
    bytes(each.size_bytes),
    bytes(each.journal_bytes),
  ];
}

/** How many are led here, and how many there are if others lead some. */
function partitions({ partitions: led, elsewhere }) {
  return elsewhere.length ? `${count(led.length)} of ${count(led.length + elsewhere.length)}` : count(led.length);
}

function growth(topic) {
  const now = { end: topic.partitions.reduce((sum, each) => sum + each.high_watermark, 0), at: performance.now() };
  const before = ends.get(topic.topic_id);
  ends.set(topic.topic_id, now);
  return before === undefined ? "–" : rate((now.end - before.end) / ((now.at - before.at) / 1000));
}

let typing;
contains.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    pages = 1;
    refresh().catch(() => {}); // the next look says what is wrong
  }, 200);
});

more.addEventListener("click", () => {
  pages += 1;
  refresh().catch(() => {});
});
