// Aborting a transaction: asked twice, with the token or by a user who may, and only the transaction that was looked at.

import * as api from "./api.js";
import { setText, show } from "./dom.js";
import { many } from "./format.js";
import { tell } from "./notices.js";
import { askAgain, needsToken } from "./signing_in.js";

const dialog = document.getElementById("abort");
const ask = document.getElementById("abort-ask");
const sure = document.getElementById("abort-sure");
const withToken = document.getElementById("abort-with-token");
const token = document.getElementById("abort-token");
const trouble = document.getElementById("abort-trouble");

let asked = null;
let cameFrom = null;

/** Open the dialog for a live transaction; the focus goes back to `button` if that is still there. */
export function askToAbort(transaction, button) {
  asked = transaction;
  cameFrom = button;
  setText(document.getElementById("abort-id"), asked.transactional_id);
  setText(document.getElementById("abort-transaction"), asked.transaction);
  const holds = `${many(asked.records, "record")} in ${many(asked.partitions_total, "partition")}`;
  setText(document.getElementById("abort-holds"), holds);
  setText(
    document.getElementById("abort-consequence"),
    `${holds} of ${asked.transactional_id} will be thrown away. No reader has seen any of them.`,
  );
  show(withToken, needsToken());
  step(ask);
  dialog.showModal();
  (token.value || !needsToken() ? ask.querySelector("[data-cancel]") : token).focus();
}

function step(form) {
  show(ask, form === ask);
  show(sure, form === sure);
  show(trouble, false);
  dialog.setAttribute("aria-labelledby", form === ask ? "abort-title" : "abort-consequence");
}

function complain(sentence) {
  setText(trouble, sentence);
  show(trouble, true);
}

ask.addEventListener("submit", (event) => {
  event.preventDefault();
  if (needsToken() && !token.value.trim()) {
    complain("The admin token is needed.");
    token.focus();
    return;
  }
  step(sure);
  // Whoever presses the key once too often says no.
  sure.querySelector("[data-back]").focus();
});

sure.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = sure.querySelector("[type=submit]");
  button.disabled = true;
  try {
    await api.abort(asked.transactional_id, asked.transaction, needsToken() ? token.value.trim() : null);
    dialog.close();
    tell(`The transaction of ${asked.transactional_id} is aborted: nothing of it will ever be visible.`);
  } catch (error) {
    step(ask);
    if (error instanceof api.Unreachable) {
      complain("The node does not answer. Whether the transaction was aborted will be seen in the list.");
    } else {
      if (error.status === 401 || error.status === 403) {
        askAgain();
        token.value = "";
        token.focus();
      }
      complain(`Not aborted: ${error.message}.`);
    }
  } finally {
    button.disabled = false;
  }
});

ask.querySelector("[data-cancel]").addEventListener("click", () => dialog.close());
sure.querySelector("[data-back]").addEventListener("click", () => {
  step(ask);
  ask.querySelector("[data-cancel]").focus();
});

dialog.addEventListener("close", () => {
  if (cameFrom?.isConnected) cameFrom.focus();
  else document.getElementById("main").focus();
  cameFrom = null;
});
