// The loop: once a second the node is asked for what is being looked at; nothing while nobody looks.

import * as api from "./api.js";
import { setText } from "./dom.js";
import { timeOfDay } from "./format.js";
import { announce, setTrouble } from "./notices.js";
import { askAgain, mayLook } from "./signing_in.js";
import { PILLS } from "./states.js";

const LOOK_MS = 1000;
const LOOK_AGAIN_MS = 2000;

const health = document.getElementById("health");

let lastSeen = null;

/**
 * Begin. `ask()` asks, and shows what is answered. What this returns looks at once: call it when something else is to
 * be looked at, which `what()` names.
 */
export function watch(ask, what = () => null) {
  let looking = false;
  let timer;

  async function look() {
    clearTimeout(timer);
    if (looking || document.hidden) return;
    looking = true;
    let next = LOOK_MS;
    const before = what();
    try {
      if (await mayLook()) await ask();
      else seen(await api.health());
    } catch (error) {
      next = LOOK_AGAIN_MS;
      await stumble(error);
    } finally {
      looking = false;
    }
    // Something else may have been chosen meanwhile; that does not wait.
    timer = setTimeout(look, before === what() ? next : 0);
  }

  document.addEventListener("visibilitychange", look);
  return look;
}

/** The node has answered: this is its health, and what else is wrong, which counts for more; null if nothing is. */
export function seen(itsHealth, trouble = null) {
  if (health.dataset.state === "gone") announce("The node answers again.");
  lastSeen = Date.now();
  document.body.classList.remove("stale");
  state(itsHealth, trouble);
}

/** The node refused, or is gone: say which, and keep what was seen last, marked as old. */
async function stumble(error) {
  document.body.classList.add("stale");
  if (error instanceof api.Refused) {
    if (error.status === 401 || error.status === 403) askAgain();
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

function state(itsHealth, trouble = null) {
  setState(PILLS[itsHealth.status] ?? "ill", itsHealth.status);
  // Once: what is hidden and shown again is read out again.
  setTrouble(trouble ?? troubleOf(itsHealth));
}

function troubleOf({ status, reason }) {
  if (reason === null) return null;
  return status === "refusing writes" ? `Writes are refused: ${reason}` : `${capital(status)}: ${reason}.`;
}

function setState(name, text) {
  if (health.dataset.state !== name) health.dataset.state = name;
  setText(health, text);
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);
