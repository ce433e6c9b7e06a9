// The page of a node of one machine: its head, and the view that is being looked at.

import * as api from "./api.js";
import * as brokers from "./brokers.js";
import { setText, show } from "./dom.js";
import { age, bytes, count, duration } from "./format.js";
import * as groups from "./groups.js";
import * as sinks from "./sinks.js";
import * as topics from "./topics.js";
import * as transactions from "./transactions.js";
import { seen, watch } from "./watch.js";

const TICK_MS = 250;

const views = { transactions, topics, groups, sinks };
let current = "transactions";

// --- which view --------------------------------------------------------------------------------------

function choose() {
  const wanted = location.hash.slice(1);
  if (wanted === "main") return; // the link that skips the head
  current = wanted in views ? wanted : "transactions";
  for (const name of Object.keys(views)) document.getElementById(`view-${name}`).hidden = name !== current;
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${current[0].toUpperCase()}${current.slice(1)} · Fairlog`;
  look();
}

// --- looking -----------------------------------------------------------------------------------------

const look = watch(async () => {
  const [node] = await Promise.all([api.cluster(), views[current].refresh()]);
  showNode(node);
}, () => current);

function showNode(node) {
  seen(node.health);
  setText(document.getElementById("node-id"), String(node.node_id));
  setText(document.getElementById("node-address"), node.address);
  const several = node.shards > 1;
  show(document.getElementById("node-of-several"), several);
  show(document.getElementById("brokers"), several);
  if (several) {
    setText(document.getElementById("node-shard"), `${node.shard} of ${node.shards}`);
    if (current === "transactions") brokers.refresh(node.node_id);
  }
  setText(document.getElementById("node-uptime"), age(node.uptime_ms));
  setText(document.getElementById("node-connections"), count(node.connections));
  const lag = node.copy.backlog_bytes ? `${duration(node.copy.lag_ms)}, ${bytes(node.copy.backlog_bytes)}` : "none";
  setText(document.getElementById("node-lag"), lag);
  setText(document.getElementById("version"), `Fairlog ${node.version}`);
  setText(document.getElementById("cluster"), `cluster ${node.cluster_id}`);
}

window.addEventListener("hashchange", choose);
setInterval(() => {
  if (!document.hidden && current === "transactions" && !document.body.classList.contains("stale")) transactions.tick();
}, TICK_MS);
choose();
