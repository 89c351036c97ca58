// One run: what holds it up, its curves, and the views on its ranks, stacks, incidents, nodes, modules and log.

import { ask, now } from "./api.js";
import { Charts, Points, WINDOWS, drawTimeline } from "./charts.js";
import { h, patch, table, age as ageWords, bytes, clock, count, duration, epoch, number, opt, percent, plural, seconds } from "./dom.js";
import { confirmOrder } from "./orders.js";
import { stateWords, tone } from "./runs.js";

export const TABS = [["", "Overview"], ["ranks", "Ranks"], ["stacks", "Stacks"], ["incidents", "Incidents"], ["nodes", "Nodes"], ["modules", "Modules"], ["log", "Log"]];
const ROW_TONES = ["", "", "odd", "culprit"];
const CELL_WORDS = ["like the others", "of note", "stands out", "bad"];
const LEVELS = { good: "good", warn: "warn", bad: "bad" };
const USE_CLASSES = { work: "train", waiting: "data", data: "save", gc: "gc" };
const USES = { work: "own work", waiting: "waiting for other ranks", data: "waiting for data", gc: "garbage collections" };

export class RunView {
  constructor(run, tab, more) {
    this.run = run;
    this.path = `/api/runs/${encodeURIComponent(run)}`;
    this.doc = null;
    this.nodes = null;
    this.modules = null;
    this.stacks = null;
    this.points = new Points();
    this.charts = null;
    this.head = h("div");
    this.heads = {};
    this.wrong = h("div");
    this.tabs = h("nav", { class: "tabs", "aria-label": "views of the run" });
    this.scope = h("p", { class: "where" });
    this.body = h("div");
    this.root = h("div", {}, this.wrong, this.head, this.tabs, this.scope, this.body);
    this.again = () => {};
    this.show(tab, more);
  }

  close() {
    if (this.charts) this.charts.close();
    this.charts = null;
  }

  href(tab, more) {
    return `#/run/${encodeURIComponent(this.run)}${tab ? `/${tab}` : ""}${more ? `/${encodeURIComponent(more)}` : ""}`;
  }

  show(tab, more) {
    this.close();
    this.tab = tab;
    this.more = more;
    this.parts = {};
    this.body.replaceChildren();
    this.tabs.replaceChildren(...TABS.map(([id, words]) =>
      h("a", { href: this.href(id), "aria-current": id === tab ? "page" : null }, words)));
    if (tab === "stacks" && !this.stacks) this.lookAtStacks();
    this.draw();
  }

  /** On a narrow screen, what is shown is among the tabs that are seen. */
  reveal() {
    const current = this.tabs.querySelector("[aria-current]");
    if (current) this.tabs.scrollLeft = current.offsetLeft - this.tabs.offsetLeft - 40;
  }

  part(name, make = () => h("section")) {
    if (!this.parts[name]) {
      this.parts[name] = make();
      this.body.append(this.parts[name]);
    }
    return this.parts[name];
  }

  // Asking ------------------------------------------------------------------------------------------------------------

  questions() {
    const every = () => (this.doc && this.doc.view && this.doc.view.is_over ? 20 : 2);
    const found = [[this.path, every, (data) => { this.doc = data; this.draw(); }]];
    if (this.tab === "") {
      found.push([() => this.points.path(this.path), every, (data) => { this.points.take(data); this.drawCurves(); }]);
    }
    if (this.tab === "nodes") found.push([`${this.path}/nodes`, every, (data) => { this.nodes = data.nodes; this.draw(); }]);
    if (this.tab === "modules") found.push([`${this.path}/modules`, () => 5, (data) => { this.modules = data; this.draw(); }]);
    return found;
  }

  async lookAtStacks() {
    this.stacks = { asking: true };
    this.draw();
    try {
      this.stacks = (await ask(`${this.path}/stacks`, { body: {} })).data;
    } catch (error) {
      this.stacks = { error: error.message, at: now() };
    }
    this.draw();
  }

  async openReport(frame, incident) {
    frame.replaceChildren(h("p", { class: "soft" }, "The page is being made …"));
    try {
      const { data } = await ask(`${this.path}/report`, { body: { incident } });
      frame.replaceChildren(h("iframe", { src: data.page, sandbox: "", title: "report", referrerpolicy: "no-referrer" }));
    } catch (error) {
      frame.replaceChildren(h("p", { class: "bad" }, `${error.message}.`));
    }
  }

  age() {
    const view = this.doc && this.doc.view;
    if (!this.doc) return [null, ""];
    if (!view) return [null, "can't be shown"];
    if (view.is_over) return [null, "over"];
    const age = now() - this.doc.at;
    if (view.source !== "supervisor") return [age, `from its folder, ${ageWords(age)} ago`];
    return [age, age < 8 ? `live · ${ageWords(age)} ago` : `${ageWords(age)} old`];
  }

  tone() {
    const view = this.doc && this.doc.view;
    if (!view || view.is_over) return "";
    return view.source === "supervisor" && now() - this.doc.at < 20 ? "good" : "warn";
  }

  // Drawing -----------------------------------------------------------------------------------------------------------

  draw() {
    const doc = this.doc;
    if (!doc) return;
    if (doc.error !== undefined) {
      patch(this.wrong, doc.error, () => h("p", { class: "notice" }, `${this.run}: ${doc.error}`));
      return;
    }
    patch(this.wrong, "", () => "");
    this.drawHead(doc);
    const view = doc.view;
    patch(this.scope, this.scopeOf(view), (words) => [h("span", {}, `${words}.`)]);
    const draw = { "": "overview", ranks: "ranks", stacks: "stacksView", incidents: "incidents", nodes: "nodesView", modules: "modulesView", log: "log" };
    this[draw[this.tab]](doc, view);
  }

  scopeOf(view) {
    const by = view.source === "supervisor" ? `as the supervisor on ${view.node} has it` : `from its folder: ${view.why}`;
    const all = `all ${plural(view.ranks.total, "rank")} on ${plural(view.ranks.nodes, "node")}`;
    return { "": `The run as a whole, ${all}, ${by}`, ranks: `The ranks of attempt ${view.attempt ?? "–"}, ${all}, ${by}`, stacks: `Stacks of ${all}, asked for when this view is opened`,
      incidents: "What guardrun has found in this run, from its folder", nodes: `The nodes of this run, ${all}, ${by}`, modules: "Modules, by the last trace of this run, from its folder",
      log: "What guardrun said and saw, the newest 200 lines, times in UTC" }[this.tab];
  }

  /** The hang that a run is in which nobody has ended: it is told as an incident, and no longer as a stall. */
  openHang(doc) {
    const last = doc.incidents[0];
    const stands = ["suspicious", "stalled", "held"].includes(doc.view.state);
    return last && stands && last.kind === "hang" && !last.recovered ? last : null;
  }

  /** In pieces that change at different times: a button must not be exchanged under a finger. */
  drawHead(doc) {
    const view = doc.view;
    const piece = (name) => {
      if (!this.heads[name]) this.head.append(this.heads[name] = h("div"));
      return this.heads[name];
    };
    const state = (view.is_over && view.outcome.split(",")[0]) || view.state;
    patch(piece("state"), state, () => h("div", { class: "run-head" }, h("span", { class: `state ${tone(state)}` }, stateWords(state)), h("h1", {}, this.run)));
    const facts = [
      view.step !== null ? `step ${count(view.step)}` : "", plural(view.world_size || view.ranks.total, "rank"),
      view.ranks.nodes > 1 ? `${view.ranks.nodes} nodes` : "", `${view.is_over ? "took" : "up"} ${duration(view.uptime_s)}`,
      view.attempt !== null ? `attempt ${view.attempt}` : "", view.checkpoint_step !== null ? `checkpoint at ${count(view.checkpoint_step)}` : "",
    ].filter(Boolean).join(" · ");
    patch(piece("facts"), facts, () => h("p", { class: "where" }, facts));
    const hang = view.stall ? null : this.openHang(doc);
    patch(piece("said"), [view.stall, hang, view.outlook, view.outcome, view.reason, view.source, view.why, view.notes], () => [
      view.stall ? h("p", { class: "holds" }, h("b", {}, view.stall), view.outlook ? ` ${view.outlook}` : "") : "",
      hang ? h("p", { class: "holds" }, h("a", { href: this.href("incidents", hang.name) }, hang.summary)) : "",
      view.outcome ? h("p", { class: "where" }, `${stateWords(view.outcome)}${view.reason ? `: ${view.reason}` : ""}`) : "",
      view.source !== "supervisor" && !view.is_over ? h("p", { class: "notice" }, `What is shown may be old: ${view.why}.`) : "",
      view.source === "supervisor" && view.why ? h("p", { class: "notice" }, `The supervisor is silent: ${view.why}.`) : "",
      view.notes.map((note) => h("p", { class: "note" }, note)),
    ]);
    patch(piece("actions"), [view.is_over, view.is_held], () => this.actions(view));
    patch(piece("act"), doc.acts[0] || null, (act) => act ? h("p", { class: act.state === "failed" ? "notice" : "soft small" },
      `${act.order} at ${clock(act.at)}: ${act.state === "asking" ? "is being asked" : act.text}`) : "");
  }

  actions(view) {
    if (view.is_over) return "";
    const button = (order, words, kind = "") => h("button", { class: kind, onclick: () => confirmOrder(this, order) }, words);
    return h("div", { class: "actions" }, view.is_held ? button("unhold", "Let go") : button("hold", "Hold"), button("trace", "Trace 5 steps"),
      button("restart", "Restart", "danger"));
  }

  overview(doc, view) {
    patch(this.part("figures", () => h("dl", { class: "figures" })), [view.goodput, view.step_time_s, view.loss, view.grad_norm, view.learning_rate, view.memory, view.heat[0], view.restarts], () => [
      ["goodput", percent(view.goodput, 1)], ["a step", seconds(view.step_time_s)], ["loss", number(view.loss)], ["gradient norm", number(view.grad_norm)],
      ["learning rate", number(view.learning_rate)], ...view.memory.map((one) => [`${one.name}, rank ${one.rank}${one.limit ? ` of ${bytes(one.limit)}` : ""}`, bytes(one.most)]),
      [view.heat[0] ? `hottest, ${view.heat[0].rank === null ? view.heat[0].node : `rank ${view.heat[0].rank}`}` : "", view.heat[0] ? `${count(view.heat[0].temp_c)} °C` : ""],
      ["restarts", view.restarts ? count(view.restarts) : ""],
    ].filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    this.part("curves", () => this.makeCurves());
    this.drawCurves();
    patch(this.part("time"), [view.time, view.lost], () => this.time(view));
    patch(this.part("map"), [view.ranks.cells, view.ranks.groups, view.ranks.odd], () => [
      h("h2", {}, "Ranks"), ...this.folded(view), h("p", {}, h("a", { href: this.href("ranks") }, "All that is known of ranks"))]);
    patch(this.part("last"), doc.incidents.slice(0, 3), (found) => found.length ? [
      h("h2", {}, "Incidents"), ...found.map((one) => this.incident(one)),
      h("p", {}, h("a", { href: this.href("incidents") }, `${doc.incidents.length > 3 ? `All ${doc.incidents.length} incidents` : "Incidents"}, and the run's report`))] : []);
    patch(this.part("lines"), view.log.slice(-8), (lines) => lines.length ? [
      h("h2", {}, "Log, times in UTC"), logLines(lines.slice().reverse()), h("p", {}, h("a", { href: this.href("log") }, "More of it"))] : []);
  }

  makeCurves() {
    this.charts = new Charts(this.points);
    this.strip = h("div", { class: "strip-box" });
    const choose = (seconds_) => {
      this.charts.window = seconds_;
      for (const one of buttons) one.setAttribute("aria-pressed", String(one.seconds === seconds_));
      this.drawCurves();
    };
    const buttons = WINDOWS.map(([words, seconds_]) => Object.assign(h("button", { onclick: () => choose(seconds_), "aria-pressed": String(seconds_ === 600) }, words), { seconds: seconds_ }));
    this.none = h("p", { class: "soft" }, "No steps are known yet.");
    this.until = h("span", { class: "soft small" });
    return h("section", { class: "curves" }, h("div", { class: "section-head" }, h("h2", {}, "Over time"), this.until, h("span", { class: "choice" }, buttons)), this.none, this.strip, this.charts.root);
  }

  drawCurves() {
    if (!this.charts || !this.doc || !this.doc.view) return;
    const open = this.openHang(this.doc);
    const found = this.doc.incidents.map((one) => [epoch(one.onset) ?? epoch(one.detected), "incident", `${one.cause}: ${one.summary}`, one === open ? Infinity : epoch(one.recovered)])
      .filter(([at]) => at !== null);
    const marks = [...this.doc.marks, ...found];
    this.charts.marks = marks;
    this.charts.until = this.doc.view.is_over ? 0 : this.doc.at;
    const range = this.charts.range();
    this.none.hidden = range !== null;
    this.until.replaceChildren(range ? `as the journal has it, to ${clock(range[1])}` : "");
    drawTimeline(this.strip, marks, range);
    this.charts.draw();
  }

  time(view) {
    if (!view.time.length && !view.lost.length) return [];
    const bar = (uses, classOf) => h("div", { class: "stack-bar", role: "img", "aria-label": uses.map((one) => `${one.name} ${percent(one.share)}`).join(", ") },
      uses.filter((one) => one.share > 0.002).map((one, n) => {
        const piece = h("i", { class: classOf(one, n), title: `${one.name} ${percent(one.share)}` });
        piece.style.flexGrow = String(Math.max(one.share, 0.004));
        return piece;
      }));
    const keys = (uses, classOf, words) => h("ul", { class: "legend" }, uses.map((one, n) => h("li", {}, h("i", { class: `key ${classOf(one, n)}` }), `${words(one)} ${percent(one.share)}`)));
    const ofStep = (one) => `k-${USE_CLASSES[one.name] || "other"}`;
    const lostClass = (one) => `u-${one.name}`;
    const lost = view.lost.filter((one) => one.seconds > 0);
    return [
      h("h2", {}, "Where time goes"),
      ...(view.time.length ? [h("p", { class: "soft small" }, "Ordinary steps, all ranks together, as far as the journal was read"), bar(view.time, ofStep), keys(view.time, ofStep, (one) => USES[one.name] || one.name)] : []),
      ...(lost.length ? [h("p", { class: "soft small" }, "Of the run's time, what was no training"), h("ul", { class: "legend" }, lost.map((one) => h("li", {}, h("i", { class: `key ${lostClass(one)}` }), `${one.name} ${duration(one.seconds)}`)))] : []),
    ];
  }

  // Ranks -------------------------------------------------------------------------------------------------------------

  folded(view) {
    const ranks = view.ranks;
    const each = ranks.cell_size === 1 ? `a ${ranks.cell_word}` : `${ranks.cell_size} ${ranks.cell_word}s`;
    return [
      h("p", {}, h("b", {}, plural(ranks.total, "rank")), ranks.odd ? h("span", { class: "warn-text" }, ` · ${count(ranks.odd)} stand${ranks.odd === 1 ? "s" : ""} out`) : " · none stands out"),
      ...ranks.groups.map((group) => h("p", { class: "group" }, h("b", {}, count(group.count)), ` ${[group.state, group.phase, group.first_step === null ? "" : group.first_step === group.last_step ? `step ${count(group.first_step)}` : `steps ${count(group.first_step)}–${count(group.last_step)}`].filter(Boolean).join(" · ")}`,
        group.ranks && group.count < ranks.total ? h("span", { class: "soft" }, ` (${group.ranks})`) : "")),
      ranks.cells.length > 1 ? h("div", { class: `cells ${ranks.cells.length > 256 ? "many" : ""}`, role: "img", "aria-label": `${count(ranks.cells.filter((one) => one > 1).length)} of ${count(ranks.cells.length)} stand out` },
        ranks.cells.map((one, n) => h("i", { class: `c${one}`, title: `${ranks.cell_word} ${n * ranks.cell_size}: ${CELL_WORDS[one]}` }))) : "",
      ranks.cells.length > 1 ? h("p", { class: "soft small" }, `A square is ${each}: `, h("i", { class: "key c2" }), "stands out ", h("i", { class: "key c3" }), "bad. Facts to look at first, and no verdicts.") : "",
    ].filter((one) => one !== "");
  }

  ranks(doc, view) {
    patch(this.part("map"), [view.ranks.cells, view.ranks.groups, view.ranks.odd, view.ranks.total], () => this.folded(view));
    patch(this.part("rows"), [view.ranks.rows, view.ranks.total], ([rows, total]) => {
      if (!rows.length) return [h("p", { class: "soft" }, "No ranks are known.")];
      const few = total <= rows.length;
      const sorted = few ? rows.slice().sort((a, b) => b.tone - a.tone || a.rank - b.rank) : rows;
      const shown = few ? sorted : sorted.filter((row) => row.tone > 0);
      const more = total - shown.length;
      if (!shown.length) return [h("p", {}, "No rank stands out.")];
      return [
        h("h2", {}, few ? "Each rank, those that stand out first" : `Those that stand out, ${shown.length} of ${count(total)}`),
        table([
          ["Rank", (row) => String(row.rank), "number"], ["Node", (row) => row.node], ["State", (row) => row.state], ["Step", (row) => count(row.step), "number"],
          ["A step", (row) => seconds(row.step_time_s), "number"], ["Work", (row) => seconds(row.work_s), "number"], ["Waits", (row) => seconds(row.waited_s), "number"],
          ["Data", (row) => percent(row.data_share), "number"], ["GC", (row) => percent(row.gc_share), "number"], ["Progress", (row) => opt(row.progress_s, (n) => `${duration(n)} ago`), "number"],
          ["Memory", (row) => bytes(row.resident), "number"], ["Device", (row) => bytes(row.allocated), "number"], ["Phase", (row) => row.phase], ["Why", (row) => row.why, "wide"],
        ], shown, (row) => ROW_TONES[row.tone]),
        h("p", { class: "soft small" }, "Work and waits are the parts of a step: the slow rank works long and waits least.", more > 0 ? ` The other ${count(more)} are in the groups above.` : ""),
      ];
    });
    patch(this.part("spreads"), view.ranks.spreads, (spreads) => spreads.length && view.ranks.total > 8 ? [
      h("h2", {}, "Spread over ranks"), ...spreads.map((one) => {
        const most = Math.max(...one.bins) || 1;
        return h("div", { class: "spread" }, h("span", {}, one.name), h("div", { class: "bins", role: "img", "aria-label": `${one.name}: ${seconds(one.low)} to ${seconds(one.high)}` }, one.bins.map((n) => {
          const bin = h("i", { title: `${count(n)} ranks` });
          bin.style.height = `${n ? Math.max(6, Math.round(100 * Math.sqrt(n / most))) : 0}%`;
          return bin;
        })), h("span", { class: "soft" }, `${seconds(one.low)} … median ${seconds(one.median)} … ${seconds(one.high)}`));
      })] : []);
  }

  // Stacks ------------------------------------------------------------------------------------------------------------

  stacksView(doc, view) {
    const told = this.stacks;
    patch(this.part("stacks"), [told, view.is_over], () => {
      if (view.is_over) return [h("p", { class: "soft" }, "The run is over: nobody is there to ask. Incidents have the stacks of their time.")];
      if (!told || told.asking) return [h("p", { class: "soft" }, "Every rank's process tree is looked at, which takes a few milliseconds of each …")];
      const head = h("div", { class: "section-head" }, h("h2", {}, told.error ? "No stacks" : `${plural(told.ranks, "rank")}, as at ${clock(told.at)}`),
        h("button", { onclick: () => this.lookAtStacks() }, "Look again"));
      if (told.error) return [head, h("p", { class: "notice" }, told.error)];
      return [head,
        h("p", { class: "soft small" }, "Equal stacks once, innermost first; libraries' frames folded. This is not asked again by itself."),
        ...told.groups.map((group, n) => h("details", { open: n < 4 && group.kind === "main thread" }, h("summary", {}, h("b", {}, `${group.kind === "main thread" ? "" : `${group.name || group.kind}, `}rank${group.count === 1 ? "" : "s"} ${group.ranks}`),
          innermost(group), group.note ? h("span", { class: "soft" }, ` – ${group.note}`) : "", group.holds_gil ? h("span", { class: "warn-text" }, " – holds the GIL") : ""),
        h("ol", { class: "stack" }, group.frames.map((frame) => frame.folded !== undefined ? h("li", { class: "soft" }, frame.folded)
          : h("li", {}, h("span", { class: "mine" }, frame.function), h("span", { class: "file" }, ` ${frame.file}:${(frame.lines || []).join(",")}`)))))),
        told.left_out ? h("p", { class: "soft" }, `${plural(told.left_out, "group")} more: guardctl stacks`) : "",
        ...told.missing.map(([rank, why]) => h("p", { class: "note" }, `Rank ${rank}: ${why}`)),
      ].filter((one) => one !== "");
    });
  }

  // Incidents ---------------------------------------------------------------------------------------------------------

  incident(one) {
    const facts = [one.step !== null && one.step !== undefined ? `step ${one.step}` : "", clock(epoch(one.detected)), stateWords(one.action === "none" ? "nothing done" : one.action),
      one.recovered ? "recovered" : "not recovered", opt(one.confidence, (n) => `${percent(n)} sure`)].filter(Boolean).join(" · ");
    return h("a", { class: `incident ${one.recovered ? "" : "open"}`, href: this.href("incidents", one.name) },
      h("span", { class: "soft small" }, `${one.id} · ${one.kind} `, h("b", {}, one.cause), ` · ${facts}`), h("span", {}, one.summary));
  }

  incidents(doc) {
    if (this.more) return this.oneIncident(doc);
    patch(this.part("list"), doc.incidents, (found) => found.length ? found.map((one) => this.incident(one)) : [h("p", { class: "soft" }, "None. What guardrun finds is told here.")]);
    this.part("report", () => this.reportPart("", "The run's report", "One page of the whole run: every attempt, what each rank did over time, where the time went. It is made anew from the whole journal, which takes some seconds."));
  }

  oneIncident(doc) {
    const one = doc.incidents.find((incident) => incident.name === this.more);
    patch(this.part("one"), one || null, () => {
      if (!one) return [h("p", { class: "notice" }, "There is no such incident, or it is older than the newest 200.")];
      const culprits = one.culprits.map((who) => who.rank === null ? `${who.node}` : `rank ${who.rank} on ${who.node}${who.pid ? `, pid ${who.pid}` : ""}`).join("; ");
      const rows = [["Cause", `${one.kind}: ${one.cause}, ${percent(one.confidence)} sure`], ["Culprits", culprits || "none named"], ["Step", opt(one.step, count)], ["Attempt", opt(one.attempt, count)],
        ["Began", clock(epoch(one.onset))], ["Detected", clock(epoch(one.detected))], ["Done", stateWords(one.action === "none" ? "nothing" : one.action)],
        ["Resumed from", one.resumed_from ? `step ${one.resumed_from.step}, ${one.resumed_from.path}` : ""], ["Recovered", one.recovered ? clock(epoch(one.recovered)) : "no"]].filter(([, value]) => value);
      return [h("p", { class: "small" }, h("a", { href: this.href("incidents") }, "All incidents")), h("h2", {}, one.summary), one.advice ? h("p", {}, one.advice) : "",
        h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))].filter((part) => part !== "");
    });
    if (one && one.has_page) this.part("report", () => this.reportPart(one.name, "Report", "The page that guardrun wrote then: evidence, stacks, collectives, who waited for whom."));
  }

  reportPart(incident, title, words) {
    const frame = h("div", { class: "frame" });
    return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, title), h("button", { onclick: () => this.openReport(frame, incident) }, "Show")),
      h("p", { class: "soft small" }, words, " What it holds is the run's: it is shown shut in, without any script, and its links lead nowhere."), frame);
  }

  // The rest ----------------------------------------------------------------------------------------------------------

  nodesView() {
    const nodes = this.nodes;
    const few = nodes && nodes.total <= 16;
    patch(this.part("nodes"), nodes, () => {
      if (!nodes) return [h("p", { class: "soft" }, "Asking …")];
      const shown = few ? nodes.rows : nodes.rows.filter((row) => row.tone > 0);
      return [h("h2", {}, `${plural(nodes.total, "node")}${nodes.odd ? `, ${count(nodes.odd)} of note` : ", none of note"}`), shown.length ? table([
        ["Node", (row) => row.node], ["Role", (row) => row.role], ["Standing", (row) => [row.standing, row.why].filter(Boolean).join(": ")], ["Ranks", (row) => count(row.ranks), "number"],
        ["Stand out", (row) => (row.odd ? count(row.odd) : ""), "number"], ["Heard", (row) => opt(row.age_s, (n) => `${ageWords(n)} ago`), "number"],
        ["Hottest", (row) => opt(row.temp_c, (n) => `${count(n)} °C`), "number"], ["Findings", (row) => row.findings.join(" "), "wide"],
      ], shown, (row) => ROW_TONES[row.tone]) : h("span")];
    });
    const others = nodes && !few ? nodes.rows.filter((row) => row.tone === 0).map((row) => `${row.node} (${row.ranks})`) : [];
    patch(this.part("others"), [others, nodes && nodes.total - nodes.rows.length], ([names, more]) => names.length ? [h("details", {}, h("summary", {}, "Those of which there is nothing to say, with how many ranks each has"),
      h("p", { class: "names" }, names.map((name) => h("span", {}, name)), more > 0 ? h("span", {}, `and ${count(more)} more`) : ""))] : []);
  }

  modulesView(doc, view) {
    patch(this.part("modules"), [this.modules && this.modules.traces, view.is_over], ([traces, isOver]) => {
      if (!traces) return [h("p", { class: "soft" }, "Asking …")];
      if (!traces.length) return [h("p", {}, "Nothing has been traced in this run. "), isOver ? h("span") : h("p", { class: "soft" }, "Trace 5 steps, above, times every module's calls for five steps and then ends by itself: each call takes some 30 µs more meanwhile.")];
      return traces.map((trace) => [h("h2", {}, `Rank ${trace.rank} on ${trace.node}`), h("p", { class: "soft small" }, trace.said.join(" ")), table([
        ["Module", (row) => row.module, "wide"], ["Stage", (row) => row.stage], ["Calls", (row) => count(row.count), "number"], ["Mean", (row) => seconds(row.mean_s), "number"],
        ["Total", (row) => seconds(row.total_s), "number"], ["Share", (row) => percent(row.share), "number"], ["Memory", (row) => row.grown, "number"],
      ], trace.rows), trace.left_out ? h("p", { class: "soft small" }, `${count(trace.left_out)} more: guardctl trace show`) : h("span")]);
    });
  }

  log(doc, view) {
    patch(this.part("log"), view.log, (lines) => lines.length ? [logLines(lines.slice().reverse())] : [h("p", { class: "soft" }, "Nothing yet.")]);
  }
}

/** ` in fetch (train.py:73)`: of a group's stack, where it is in the user's code. */
function innermost(group) {
  const frames = group.frames.filter((one) => one.folded === undefined);
  const frame = frames.find((one) => !/\/(site|dist)-packages\/|\/lib\/python3/.test(one.file)) || frames[0];
  return frame ? ` in ${frame.function} (${frame.file.split("/").at(-1)}:${(frame.lines || []).join(",")})` : "";
}

function logLines(lines) {
  return h("ol", { class: "log" }, lines.map((line) => h("li", { class: LEVELS[line.level] || "" }, h("time", {}, line.time), h("span", {}, line.text))));
}
