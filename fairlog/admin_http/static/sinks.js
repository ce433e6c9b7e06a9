// Sinks: which query writes, what it has committed last, and whether a batch is being written.

import * as api from "./api.js";
import { element, reconcile, setText, show } from "./dom.js";
import { age, count, many, timeOfDay } from "./format.js";
import { placements } from "./places.js";
import { foldingRow } from "./table.js";

const LABELS = ["sink", "last batch", "its records", "writing", "last used"];
const NUMERIC = [false, true, true, false, false];
const DAY_MS = 24 * 3600 * 1000;

export async function refresh() {
  const { sinks, total } = await api.sinks();
  const more = total - sinks.length;
  reconcile(document.getElementById("sinks-rows"), sinks, (each) => each.sink, sinkRow);
  const empty = document.getElementById("sinks-empty");
  setText(empty, more ? `and ${many(more, "sink")} used before` : "No Spark query has written to a topic.");
  show(empty, sinks.length === 0 || more > 0);
}

function sinkRow() {
  const row = foldingRow(LABELS, NUMERIC);
  let told;
  row.update = (sink) => {
    const tell = JSON.stringify([sink.query, sink.run, sink.placements]);
    const writing = sink.open_lanes ? `${many(sink.open_lanes, "lane")}, for ${age(sink.writing_ms)}` : "–";
    row.set([sink.sink, whole(sink.batch), whole(sink.records), writing, moment(sink.used_ms)], (details) => {
      if (told === tell) return; // what is read, or being selected, stays as it is
      told = tell;
      const facts = [fact("query", sink.query), fact("run", sink.run ?? "none since the node was started")];
      details.replaceChildren(
        element("dl", { class: "facts" }, ...facts),
        placements(sink.placements, sink.partitions_total),
      );
    });
  };
  return row;
}

const whole = (number) => (number === null ? "–" : count(number));
const fact = (name, value) => element("div", {}, element("dt", {}, name), element("dd", {}, value));

/** With its day, unless it is of the last one. */
function moment(unixMs) {
  const day = Date.now() - unixMs < DAY_MS ? "" : `${new Date(unixMs).toLocaleDateString("en-CA")} `;
  return `${day}${timeOfDay(unixMs)}`;
}
