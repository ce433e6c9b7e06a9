// The page of a node of several machines: the cluster as this node sees it.

import * as api from "./api.js";
import { element, reconcile, setText } from "./dom.js";
import { age, bytes, count } from "./format.js";
import { tell } from "./notices.js";
import { fillTable, foldingRow } from "./table.js";
import { seen, watch } from "./watch.js";

const SHARD_LABELS = ["shard", "owner", "epoch", "in sync", "largest lag", "moved to"];
const SHARD_NUMERIC = [false, false, true, true, true, false];

/** Who owned which shard when it was last looked; null before the first time. */
let owners = null;

const look = watch(async () => {
  const [cluster, health] = await Promise.all([api.cluster(), api.health()]);
  seen(health, cluster.engine.answers ? null : `The engine does not answer: ${cluster.engine.said}`);
  showHead(cluster, health);
  showFigures(cluster);
  reconcile(document.getElementById("shards-rows"), cluster.shards, (shard) => String(shard.number), shardRow);
  reconcile(document.getElementById("nodes-rows"), nodesOf(cluster), (node) => String(node.number), nodeRow);
  showEngine(cluster.engine);
  tellMoves(cluster.shards);
});

function showHead(cluster, health) {
  setText(document.getElementById("cluster-name"), cluster.name);
  setText(document.getElementById("node-id"), String(cluster.node));
  const roles = Object.entries(health.shards ?? {}).map(([shard, role]) => `shard ${shard} (${role})`);
  setText(document.getElementById("node-roles"), roles.join(", ") || "–");
  setText(document.getElementById("version"), `Fairlog ${cluster.version}`);
  setText(document.getElementById("cluster"), `cluster ${cluster.cluster_id}`);
}

// --- figures -----------------------------------------------------------------------------------------

function showFigures({ nodes, shards }) {
  const copies = shards.flatMap((shard) => shard.copies);
  figure("nodes", ...share(nodes.filter((node) => node.is_up).length, nodes.length));
  figure("owned", ...share(shards.filter((shard) => shard.owner !== null).length, shards.length));
  figure("in-sync", ...share(copies.filter((copy) => copy.in_sync).length, copies.length));
  figure("lag", lagText(copies), false);
  // The first owner of a shard is no change.
  figure("changes", count(shards.reduce((sum, shard) => sum + Math.max(0, shard.epoch - 1), 0)), false);
}

const share = (some, all) => [`${count(some)} of ${count(all)}`, some < all];

function figure(name, text, alarming) {
  const shown = document.querySelector(`[data-figure=${name}]`);
  setText(shown.firstElementChild, text);
  shown.classList.toggle("alarming", alarming);
}

function lagText(copies) {
  const known = copies.map((copy) => copy.lag).filter((lag) => lag !== null);
  return known.length ? count(Math.max(...known)) : "–";
}

// --- shards ------------------------------------------------------------------------------------------

function shardRow() {
  const row = foldingRow(SHARD_LABELS, SHARD_NUMERIC);
  row.update = (shard) => {
    const inSync = shard.copies.filter((copy) => copy.in_sync).length;
    row.set(
      [
        String(shard.number),
        shard.owner === null ? "none" : `node ${shard.owner}`,
        count(shard.epoch),
        `${inSync} of ${shard.copies.length}`,
        lagText(shard.copies),
        shard.wish === null ? "–" : `node ${shard.wish}`,
      ],
      (details) =>
        fillTable(
          details,
          ["copy", "role", "in sync", "lag", "last report"],
          shard.copies.map((copy) => [
            `node ${copy.node}`,
            copy.role,
            copy.in_sync ? "yes" : "no",
            copy.lag === null ? "–" : count(copy.lag),
            copy.age_s === null ? "–" : `${age(copy.age_s * 1000)} ago`,
          ]),
        ),
    );
  };
  return row;
}

/** A failover, or a move, is news. */
function tellMoves(shards) {
  const now = new Map(shards.map((shard) => [shard.number, shard.owner]));
  for (const [shard, owner] of now) {
    const before = owners?.get(shard) ?? null;
    if (before !== null && owner !== null && before !== owner) tell(`Shard ${shard} went from node ${before} to node ${owner}.`);
  }
  owners = now;
}

// --- nodes -------------------------------------------------------------------------------------------

function nodesOf({ nodes, shards }) {
  const numbers = (some) => some.map((shard) => shard.number).join(", ") || "–";
  return nodes.map((node) => ({
    ...node,
    owns: numbers(shards.filter((shard) => shard.owner === node.number)),
    keeps: numbers(
      shards.filter((shard) => shard.owner !== node.number && shard.copies.some((copy) => copy.node === node.number)),
    ),
  }));
}

function nodeRow() {
  const cell = (label) => element("span", { role: "cell", data: { label } });
  const [number, host, rack, state, owns, keeps] = ["node", "host", "rack", "state", "owns shards", "copies shards"].map(cell);
  const pill = element("span", { class: "pill" });
  state.append(pill);
  const row = element("div", { role: "row", class: "line" }, number, host, rack, state, owns, keeps);
  row.update = (node) => {
    setText(number, String(node.number));
    setText(host, node.address);
    setText(rack, node.rack ?? "–");
    setText(pill, node.is_up ? "up" : "not heard");
    pill.dataset.state = node.is_up ? "well" : "ill";
    setText(owns, node.owns);
    setText(keeps, node.keeps);
  };
  return row;
}

// --- the engine --------------------------------------------------------------------------------------

function showEngine(engine) {
  const pill = document.getElementById("engine-state");
  setText(pill, engine.answers ? "answers" : "away");
  pill.dataset.state = engine.answers ? "well" : "ill";
  setText(document.getElementById("engine-since"), age(engine.since_s * 1000));
  setText(document.getElementById("engine-appends"), count(engine.appends));
  setText(document.getElementById("engine-bytes"), bytes(engine.bytes));
  setText(document.getElementById("engine-unknown"), count(engine.unknown));
}

look();
