// Consumer groups: who takes part, and how far they are behind.

import * as api from "./api.js";
import { reconcile, show } from "./dom.js";
import { count, place } from "./format.js";
import { fillTable, foldingRow } from "./table.js";

const LABELS = ["group", "state", "members", "lag"];
const NUMERIC = [false, false, true, true];

export async function refresh() {
  const { groups } = await api.groups();
  reconcile(document.getElementById("groups-rows"), groups, (group) => group.group, groupRow);
  show(document.getElementById("groups-empty"), groups.length === 0);
}

/** Its records in all partitions whose end is known here; others than this process may lead some. */
function lag(group) {
  return group.partitions.some((each) => each.lag === null) ? `${count(group.lag)} + …` : count(group.lag);
}

function groupRow() {
  const row = foldingRow(LABELS, NUMERIC);
  row.update = (group) => {
    row.set([group.group, group.state, count(group.members), lag(group)], (details) =>
      fillTable(
        details,
        ["partition", "committed", "high watermark", "lag"],
        group.partitions.map((each) => [
          place(each),
          count(each.committed),
          each.high_watermark === null ? "–" : count(each.high_watermark),
          each.lag === null ? "–" : count(each.lag),
        ]),
      ),
    );
  };
  return row;
}
