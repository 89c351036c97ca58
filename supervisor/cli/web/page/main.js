// Which view is shown, by the address; what holds for all: the heading, how fresh it is, who may look.

import { Poller, adopt, ask, keep, now } from "./api.js";
import { h, duration, clock } from "./dom.js";
import { RunView, TABS } from "./run.js";
import { RunsView } from "./runs.js";

const top_ = document.getElementById("top");
const main = document.getElementById("main");
const place = h("span", { class: "place" });
const fresh = h("span", { class: "fresh" });
const lost = h("div", { class: "lost", role: "alert", hidden: true });
top_.append(h("div", { class: "bar-inner" }, h("a", { class: "brand", href: "#/" }, "guardrun"), place, fresh), lost);

let view = null;
let pollers = [];
let troubleSince = null;

/** {run, tab, more} of the address; run is null for the list. */
function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  if (parts[0] !== "run" || !parts[1]) return { run: null, tab: "", more: "" };
  return { run: parts[1], tab: TABS.some(([id]) => id === parts[2]) ? parts[2] : "", more: parts[3] || "" };
}

function go() {
  if (location.hash.startsWith("#token=")) adopt();
  for (const one of pollers) one.end();
  pollers = [];
  troubleSince = null;
  lost.hidden = true;
  const at = route();
  if (view && view.run === at.run && at.run !== null) {
    view.show(at.tab, at.more);
  } else {
    if (view) view.close();
    view = at.run === null ? new RunsView() : new RunView(at.run, at.tab, at.more);
    main.replaceChildren(view.root);
    window.scrollTo(0, 0);
  }
  document.title = at.run === null ? "guardrun" : `${at.run} · guardrun`;
  place.replaceChildren(at.run === null ? "" : h("a", { href: `#/run/${encodeURIComponent(at.run)}` }, at.run));
  for (const [path, every, take] of view.questions()) {
    pollers.push(new Poller(path, every, (data) => { take(data); tick(); }, onTrouble));
  }
  if (view.reveal) view.reveal();
  view.again = () => pollers.forEach((one) => one.soon());
  tick();
}

function onTrouble(error) {
  if (error === null) {
    troubleSince = null;
    lost.hidden = true;
    return;
  }
  if (error.status === 403) return signIn(error.said || {});
  troubleSince = troubleSince || now();
  const gone = error.status === undefined;
  lost.hidden = false;
  lost.replaceChildren(gone
    ? h("span", {}, "guardctl web does not answer since ", clock(troubleSince), ": it has ended, or the connection to it has. What is shown is as it was then. ",
      "Asked again by and by.")
    : h("span", {}, error.message, ". Asked again by and by."));
}

/** The freshness of what is shown, counted on between answers. */
function tick() {
  if (document.hidden || !view) return;
  const [age, words] = view.age();
  fresh.className = `fresh ${troubleSince ? "bad" : view.tone()}`;
  fresh.replaceChildren(h("i", { class: "dot" }), words || (age === null ? "asking …" : `${duration(Math.max(0, age))} old`));
}

/** Whoever has no token, or one of a guardctl web that has ended. */
function signIn(said) {
  for (const one of pollers) one.end();
  pollers = [];
  if (view) view.close();
  view = null;
  fresh.replaceChildren();
  const field = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", "aria-label": "token" });
  const wrong = h("p", { class: "bad" });
  const open = async (event) => {
    event.preventDefault();
    const found = /([\w-]{20,})\s*$/.exec(field.value.trim());
    if (!found) return wrong.replaceChildren("A token, or the whole address that guardctl web printed, is what goes here.");
    keep(found[1]);
    try {
      await ask("/api/runs");
    } catch (error) {
      if (error.status === 403) return wrong.replaceChildren("That is not the token of this guardctl web: each start makes a new one.");
    }
    go();
  };
  main.replaceChildren(h("section", { class: "sign-in" },
    h("h1", {}, "Who may look here"),
    h("p", {}, "These runs are shown to whoever has the token of this ", h("code", {}, "guardctl web"),
      ". It is at the end of the address that it printed when it was started; each start makes a new one."),
    said.token_file ? h("p", {}, "On that machine, its user can read it: ", h("code", {}, `cat ${said.token_file}`)) : "",
    h("form", { onsubmit: open }, h("label", { for: "token" }, "Token, or address"), field, h("button", { class: "main" }, "Open")),
    wrong,
    h("p", { class: "soft" }, "What you came for is shown then.")));
}

addEventListener("hashchange", go);
document.addEventListener("visibilitychange", tick);
setInterval(tick, 1000);
adopt();
go();
