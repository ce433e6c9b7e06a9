// What is said to people: trouble at the top for as long as it lasts, news for a while, and both to screen readers.

import { setText, show } from "./dom.js";

const DONE_MS = 8000;

const trouble = document.getElementById("trouble");
const done = document.getElementById("done");
const said = document.getElementById("said");
let doneTimer;

/** Say what is wrong, until it is null. */
export function setTrouble(sentence) {
  if (sentence !== null) setText(trouble, sentence);
  show(trouble, sentence !== null);
}

/** Say what was done. */
export function tell(sentence) {
  setText(done, sentence);
  show(done, true);
  announce(sentence);
  clearTimeout(doneTimer);
  doneTimer = setTimeout(() => show(done, false), DONE_MS);
}

/** For screen readers alone, when they have time. */
export function announce(sentence) {
  setText(said, sentence);
}
