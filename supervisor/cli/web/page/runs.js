// The runs of a folder.

import { now } from "./api.js";
import { h, patch, count, duration, number, percent, plural, clock } from "./dom.js";

const TONES = { training: "good", finished: "good", stalled: "bad", suspicious: "warn", failed: "bad", gave_up: "bad", unreachable: "bad",
  held: "warn", unfinished: "warn", interrupted: "warn", preempted: "warn" };
export const tone = (state) => TONES[state] || "";
export const stateWords = (state) => String(state || "").replaceAll("_", " ");

export class RunsView {
  constructor() {
    this.run = null;
    this.data = null;
    this.got = null;
    this.scope = h("p", { class: "where" });
    this.list = h("div", { class: "runs" });
    this.root = h("div", {}, h("h1", {}, "Runs"), this.scope, this.list);
  }

  questions() {
    return [["/api/runs", () => (this.data && this.data.unread ? 1 : 5), (data) => this.take(data)]];
  }

  take(data) {
    this.data = data;
    this.got = now();
    const living = data.runs.filter((run) => run.is_alive).length;
    patch(this.scope, [data.folder, data.node, data.runs.length, data.left_out, data.unread, living], () => [
      h("span", {}, `${plural(data.runs.length, "run")} of yours in `, h("code", {}, data.folder), ` on ${data.node}, ${living} alive, which come first; then the newest`,
        data.left_out ? `; ${count(data.left_out)} older ones are not shown` : "", data.unread ? `; ${count(data.unread)} are being read` : "",
        ". Living ones are asked every 10 s.")]);
    patch(this.list, data.runs.length ? data.runs : data.why || "none", () => data.runs.length ? order(data.runs).map(card)
      : [h("section", {}, h("p", {}, data.why || "No runs here yet. A run appears when guardrun starts one in this folder."))]);
  }

  age() {
    return this.got === null ? [null, ""] : [now() - this.got, now() - this.got < 12 ? "live" : ""];
  }

  tone() {
    return this.got !== null && now() - this.got < 12 ? "good" : "warn";
  }

  close() {}
}

const URGENT = { bad: 0, warn: 1, "": 2, good: 2 };

/** Living ones first, and of these those in trouble; then the newest. */
function order(runs) {
  const rank = (run) => (run.is_alive ? URGENT[tone(run.state)] : 9);
  return runs.slice().sort((a, b) => rank(a) - rank(b) || b.created - a.created);
}

function card(run) {
  const last = run.last_incident;
  const facts = [
    [run.step, "step", count], [run.loss, "loss", number], [run.goodput, "goodput", (n) => percent(n)],
    [run.world_size, "ranks", count], 
  ].filter(([value]) => typeof value === "number");
  return h("a", { class: `card ${tone(run.state)}`, href: `#/run/${encodeURIComponent(run.name)}` },
    h("div", { class: "card-head" }, h("span", { class: `state ${tone(run.state)}` }, stateWords(run.state)), h("strong", {}, run.name)),
    h("div", { class: "facts" }, facts.map(([value, name, words]) => h("span", {}, h("b", {}, words(value)), ` ${name}`)),
      run.uptime_s ? h("span", {}, run.is_alive ? "up " : ["unfinished", "elsewhere"].includes(run.state) ? "known for " : "took ", h("b", {}, duration(run.uptime_s))) : ""),
    run.said ? h("p", { class: `said ${tone(run.state)}` }, run.said) : "",
    last ? h("p", { class: "soft" }, `Last of ${plural(run.incidents, "incident")}: `, h("b", {}, `${last.cause}`), ` · ${last.summary}`) : "",
    h("p", { class: "soft small" }, `begun ${clock(run.created, false)} on ${run.node}`));
}
