// Signing in and out, where the listener asks who its callers are; and what the user may do. One form for both pages.

import * as api from "./api.js";
import { element, setText, show } from "./dom.js";

const main = document.getElementById("main");

/** What the node says of us; null before it was asked, and when it is to be asked again. */
let me = null;
let hadUser = false;

const user = input("sign-in-user", { type: "text", name: "username", autocomplete: "username", maxLength: 255 });
const password = input("sign-in-password", { type: "password", name: "password", autocomplete: "current-password" });
const trouble = element("p", { class: "notice trouble", role: "alert", hidden: true });
const submit = element("button", { type: "submit" }, "Sign in");
const form = element(
  "form",
  { id: "sign-in", class: "sign-in", noValidate: true, hidden: true, "aria-labelledby": "sign-in-title" },
  element("h2", { id: "sign-in-title" }, "Sign in"),
  label(user, "User"),
  user,
  label(password, "Password"),
  password,
  trouble,
  element("div", { class: "buttons" }, submit),
);
const denied = element("p", { id: "denied", class: "notice trouble", role: "alert", hidden: true });
const name = element("b");
const signOut = element("button", { type: "button" }, "Sign out");
const who = element("p", { id: "who", class: "who", hidden: true }, "signed in as ", name, signOut);

main.before(form, denied);
document.getElementById("node").after(who);

function input(id, properties) {
  return element("input", { id, required: true, autocapitalize: "none", spellcheck: false, ...properties });
}

function label(field, text) {
  return element("label", { htmlFor: field.id }, text);
}

/** Whether there is something to be seen for us; else the form, or the reason, is shown. */
export async function mayLook() {
  if (me === null) {
    me = await api.me();
    present();
  }
  return me.may.see;
}

/** The node has refused what we wanted to see: what it says of us is to be asked again. */
export function askAgain() {
  me = null;
}

/** Whether a change needs the admin token, as it does where nobody signs in. */
export const needsToken = () => me === null || !me.asks;

/** Whether changes are offered at all. */
export const mayOperate = () => needsToken() || me.may.operate;

function present() {
  const isOut = me.asks && me.user === null;
  if (isOut && hadUser) complain("The session has ended.");
  hadUser = me.user !== null;
  setText(name, me.user ?? "");
  show(who, me.user !== null);
  show(main, me.may.see);
  setText(denied, `${me.user} may not see this node: that needs the operation DESCRIBE on the cluster.`);
  show(denied, me.user !== null && !me.may.see);
  const wasShown = !form.hidden;
  show(form, isOut);
  if (isOut && !wasShown) user.focus();
}

function complain(sentence) {
  setText(trouble, sentence);
  show(trouble, true);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!user.value || !password.value) {
    complain("User and password are needed.");
    (user.value ? password : user).focus();
    return;
  }
  submit.disabled = true;
  try {
    await api.signIn(user.value, password.value);
    location.reload(); // nothing of whoever looked before stays in the page
  } catch (error) {
    password.value = "";
    password.focus();
    complain(error instanceof api.Refused ? `Not signed in: ${error.message}.` : "The node does not answer.");
  } finally {
    submit.disabled = false;
  }
});

signOut.addEventListener("click", async () => {
  signOut.disabled = true;
  try {
    await api.signOut();
    location.reload();
  } catch {
    signOut.disabled = false; // the next look says what is wrong
  }
});
