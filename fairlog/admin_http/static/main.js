// The loop: once a second the node is asked how it is and for what is being looked at; nothing while nobody looks.

import * as api from "./api.js";
import * as brokers from "./brokers.js";
import { setText, show } from "./dom.js";
import { age, bytes, count, duration, timeOfDay } from "./format.js";
import * as groups from "./groups.js";
import { announce, setTrouble } from "./notices.js";
import * as sinks from "./sinks.js";
import { PILLS } from "./states.js";
import * as topics from "./topics.js";
import * as transactions from "./transactions.js";

const LOOK_MS = 1000;
const LOOK_AGAIN_MS = 2000;
const TICK_MS = 250;

const views = { transactions, topics, groups, sinks };
const health = document.getElementById("health");

let current = "transactions";
let lastSeen = null;
let looking = false;
let timer;

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

async function look() {
  clearTimeout(timer);
  if (looking || document.hidden) return;
  looking = true;
  let next = LOOK_MS;
  const view = current;
  try {
    const [node] = await Promise.all([api.cluster(), views[view].refresh()]);
    seen(node);
  } catch (error) {
    next = LOOK_AGAIN_MS;
    await stumble(error);
  } finally {
    looking = false;
  }
  // Another view may have been chosen meanwhile; that one does not wait.
  timer = setTimeout(look, view === current ? next : 0);
}

function seen(node) {
  if (health.dataset.state === "gone") announce("The node answers again.");
  lastSeen = Date.now();
  document.body.classList.remove("stale");
  state(node.health);
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

/** The node refused, or is gone: say which, and keep what was seen last, marked as old. */
async function stumble(error) {
  document.body.classList.add("stale");
  if (error instanceof api.Refused) {
    try {
      state(await api.health());
      return;
    } catch {
      // gone between two questions
    }
  } else if (!(error instanceof api.Unreachable)) {
    throw error;
  }
  const since = lastSeen === null ? "" : ` What is shown is of ${timeOfDay(lastSeen)}.`;
  setState("gone", "no connection");
  setTrouble(`The node does not answer.${since} The console goes on trying.`);
}

function state({ status, reason }) {
  setState(PILLS[status] ?? "ill", status);
  setTrouble(reason === null ? null : status === "refusing writes" ? `Writes are refused: ${reason}` : `${capital(status)}: ${reason}.`);
}

function setState(name, text) {
  if (health.dataset.state !== name) health.dataset.state = name;
  setText(health, text);
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

window.addEventListener("hashchange", choose);
document.addEventListener("visibilitychange", look);
setInterval(() => {
  if (!document.hidden && current === "transactions" && !document.body.classList.contains("stale")) transactions.tick();
}, TICK_MS);
choose();
