// The brokers of a node of several processes: what each leads, how it is, and where its own console is.

import * as api from "./api.js";
import { element, reconcile, setText } from "./dom.js";
import { count } from "./format.js";
import { PILLS } from "./states.js";

const rows = document.getElementById("brokers-rows");

let asking = false;

/** One that hangs takes seconds to be found out, so nothing else waits for this. */
export async function refresh(own) {
  if (asking) return;
  asking = true;
  try {
    const { brokers } = await api.brokers();
    reconcile(rows, brokers, (broker) => String(broker.node_id), () => brokerRow(own));
  } catch {
    // the next look at the node itself says what is wrong
  } finally {
    asking = false;
  }
}

function brokerRow(own) {
  const cell = (label, name = "") => element("span", { role: "cell", class: name, data: { label } });
  const [id, shard, address, leads, state, link] = [
    cell("broker"), cell("shard", "number"), cell("clients"), cell("leads partitions", "number"), cell("state"), cell("console"),
  ];
  const pill = element("span", { class: "pill" });
  state.append(pill);
  const row = element("div", { role: "row", class: "line" }, id, shard, address, leads, state, link);
  row.update = (broker) => {
    setText(id, String(broker.node_id));
    setText(shard, String(broker.shard));
    setText(address, broker.address ?? "–");
    setText(leads, count(broker.partitions));
    setText(pill, broker.status);
    pill.dataset.state = PILLS[broker.status] ?? "ill";
    if (broker.node_id === own) setText(link, "this one");
    else if (link.firstChild === null) link.append(element("a", { href: consoleAt(broker.admin_port) }, "open"));
  };
  return row;
}

/** The consoles of all processes are on one host. */
function consoleAt(port) {
  const url = new URL("/", location.href);
  url.port = port;
  return url.href;
}
