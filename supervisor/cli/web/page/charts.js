// A run's curves, drawn by uPlot, and its timeline. What is kept of a run has its bound, however long a tab is open.

import { h, s, patch, bytes, clock, duration, number, opt, seconds } from "./dom.js";

const NAMES = ["at_s", "step_time_s", "loss", "grad_norm", "learning_rate", "resident", "allocated"];
const CHARTS = [
  ["Time a step", [["step_time_s", "mean of the ranks", seconds]]],
  ["Loss", [["loss", "median of the ranks", number]]],
  ["Gradient norm", [["grad_norm", "median of the ranks", number]]],
  ["Learning rate", [["learning_rate", "median of the ranks", number]]],
  ["Memory", [["resident", "host, of the rank with most", bytes], ["allocated", "device, of the rank with most", bytes]]],
];
export const WINDOWS = [["10 min", 600], ["1 h", 3600], ["all", Infinity]];

/** The points that the page has: what is new is added, and all are taken anew where the server has folded its own. */
export class Points {
  constructor() {
    this.folds = -1;
    this.created = 0;
    this.columns = NAMES.map(() => []);
  }

  path(run) {
    const last = this.columns[0].at(-1);
    return `${run}/curves?folds=${this.folds}&since=${last === undefined ? 0 : last}`;
  }

  take(data) {
    if (data.is_whole) this.columns = NAMES.map(() => []);
    this.folds = data.folds;
    this.created = data.created;
    const fresh = NAMES.map((name) => data.columns[data.names.indexOf(name)] || []);
    if (!fresh[0].length) return;
    const times = this.columns[0];
    let kept = times.length;
    while (kept && times[kept - 1] >= fresh[0][0]) kept -= 1;
    this.columns.forEach((column, n) => column.splice(kept, Infinity, ...fresh[n]));
  }
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Charts {
  constructor(points) {
    this.points = points;
    this.window = 600;
    this.marks = [];
    this.until = 0;
    this.plots = new Map();
    this.root = h("div", { class: "charts" });
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.root);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.restyle = () => { this.clear(); this.draw(); };
    this.scheme.addEventListener("change", this.restyle);
  }

  close() {
    this.sizes.disconnect();
    this.scheme.removeEventListener("change", this.restyle);
    this.clear();
  }

  clear() {
    for (const one of this.plots.values()) one.plot.destroy();
    this.plots.clear();
    this.root.replaceChildren();
  }

  /** [from, to] of what is shown, seconds since the epoch; of a run that goes on, to where it is known to be. */
  range() {
    const times = this.points.columns[0];
    if (!times.length) return null;
    const end = Math.max(this.points.created + times.at(-1), this.until);
    const first = Math.min(this.points.created + times[0], ...this.marks.filter(([, kind]) => kind !== "incident").map(([at]) => at));
    const begin = Math.max(first, end - this.window);
    return [begin, Math.max(end, begin + 1)];
  }

  draw() {
    const range = this.range();
    if (!range) return;
    const { columns, created } = this.points;
    const from = columns[0].findIndex((at) => at + created >= range[0]);
    const cut = columns.map((column) => column.slice(Math.max(0, from)));
    const times = cut[0].map((at) => at + created);
    for (const [title, series] of CHARTS) {
      const shown = series.filter(([name]) => cut[NAMES.indexOf(name)].some((value) => value !== null));
      const key = `${title}/${shown.map(([name]) => name)}`;
      const old = this.plots.get(title);
      if (old && old.key !== key) {
        old.plot.destroy();
        old.box.remove();
        this.plots.delete(title);
      }
      if (!shown.length) continue;
      if (!this.plots.has(title)) this.plots.set(title, this.make(title, key, shown));
      const one = this.plots.get(title);
      one.range = range;
      one.plot.setData([times, ...shown.map(([name]) => cut[NAMES.indexOf(name)])]);
      one.say(null);
    }
  }

  make(title, key, shown) {
    const said = h("span", { class: "now" });
    const plotted = h("div", { class: "plot", role: "img", "aria-label": `${title} over time` });
    const box = h("figure", { class: "chart-box" }, h("figcaption", {}, h("b", {}, title), said), plotted);
    const before = CHARTS.slice(CHARTS.findIndex(([name]) => name === title) + 1).map(([name]) => this.plots.get(name)).find(Boolean);
    this.root.insertBefore(box, before ? before.box : null);
    const one = { key, box, plotted, range: [0, 1], plot: null, say: null };
    one.say = (at) => {
      const [times, ...values] = one.plot.data;
      const texts = shown.map(([, what, words], n) => {
        const index = at === null ? values[n].findLastIndex((value) => value !== null) : at;
        const value = opt(values[n][index], words);
        return value ? `${value} ${shown.length > 1 ? what.split(",")[0] : ""}`.trim() : "";
      }).filter(Boolean);
      said.replaceChildren(texts.join(" · "), at === null ? "" : ` at ${clock(times[at])}`);
    };
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", gap: 4 };
    const strokes = [colour("--accent"), colour("--other")];
    const words = shown[0][2];
    one.plot = new uPlot({
      width: this.width(),
      height: 150,
      padding: [6, 8, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "run" }, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: true, range: () => one.range }, y: { range: (_, low, high) => spread(low, high) } },
      axes: [{ ...axis, size: 20, space: 56, values: (_, splits) => ticks(splits) },
        { ...axis, size: 62, space: 34, incrs: words === bytes ? POWERS : undefined, values: (_, splits) => splits.map((value) => words(value)) }],
      series: [{}, ...shown.map(([, what], n) => ({ label: what, stroke: strokes[n], width: 1.75, spanGaps: true, points: { show: false } }))],
      hooks: { setCursor: [(plot) => one.plot && one.say(plot.cursor.idx ?? null)], drawClear: [(plot) => this.drawMarks(plot)] },
    }, [[], ...shown.map(() => [])], plotted);
    return one;
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    for (const [at, kind] of this.marks) {
      const [from, to] = [plot.scales.x.min, plot.scales.x.max];
      if (at < from || at > to) continue;
      const x = Math.round(plot.valToPos(at, "x", true));
      ctx.strokeStyle = colour(kind === "incident" ? "--bad" : kind === "checkpoint_saved" ? "--save" : "--soft");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash(kind === "incident" ? [] : [3 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  width() {
    const box = this.root.clientWidth || 320;
    const columns = box >= 760 ? 2 : 1;
    return Math.max(240, Math.floor((box - 16 * (columns - 1)) / columns));
  }

  resize() {
    const width = this.width();
    for (const one of this.plots.values()) if (one.plot.width !== width) one.plot.setSize({ width, height: 150 });
  }
}

const POWERS = Array.from({ length: 50 }, (_, n) => 2 ** n);

/** Times of day; of days that are not today's, the day alone once ticks are days apart. */
function ticks(splits) {
  const isLong = splits.length > 1 && splits[1] - splits[0] >= 86400;
  const isShort = splits.length > 1 && splits[1] - splits[0] < 60;
  return splits.map((at) => (isLong ? clock(at).slice(5, 10) : clock(at, isShort).slice(isShort ? -8 : -5)));
}

/** A curve that stands still gets room above and below. */
function spread(low, high) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

// The timeline ------------------------------------------------------------------------------------------------------

const WORDS = { attempt_started: "attempt", checkpoint_saved: "checkpoint", run_continued: "continued", supervisor_restarted: "supervisor", incident: "incident" };
const WIDE = 1000;
const HIGH = 46;

/** element: filled with a strip on which marks lie, [[at, kind, text, until?]]; range: [from, to]. */
export function drawTimeline(element, marks, range) {
  const shown = range ? marks.filter(([at, , , until]) => at <= range[1] && (until || at) >= range[0]) : [];
  patch(element, [shown, range && range.map(Math.round)], () => {
    if (!range) return [];
    const x = (at) => ((Math.min(Math.max(at, range[0]), range[1]) - range[0]) / (range[1] - range[0])) * WIDE;
    const parts = [s("rect", { class: "strip", x: 0, y: 14, width: WIDE, height: 18 })];
    const starts = shown.filter(([, kind]) => kind === "attempt_started");
    const began = starts.length ? starts[0][0] : range[0];
    parts.push(s("rect", { class: "t-known", x: x(began), y: 14, width: WIDE - x(began), height: 18 }));
    for (const [at, kind, text, until] of shown) {
      const title = s("title", {}, `${clock(at)} ${text}`);
      if (kind === "incident") {
        parts.push(s("rect", { class: "t-incident", x: x(at), y: 14, width: Math.max(5, x(until || at) - x(at)), height: 18 }, title));
      } else if (kind === "checkpoint_saved") {
        parts.push(s("rect", { class: "t-save", x: x(at) - 2, y: 35, width: 4, height: 9 }, title));
      } else {
        parts.push(s("rect", { class: "t-attempt", x: x(at) - 2, y: 3, width: 4, height: 29 }, title));
      }
    }
    const kinds = [...new Set(shown.map(([, kind]) => kind))];
    return [
      s("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", class: "timeline", role: "img",
        "aria-label": `Timeline of ${duration(range[1] - range[0])}: ${shown.length} marks` }, parts),
      h("div", { class: "ends" }, h("span", {}, clock(range[0])),
        h("span", { class: "keys" }, kinds.map((kind) => h("span", {}, h("i", { class: `key t-${kind === "incident" ? "incident" : kind === "checkpoint_saved" ? "save" : "attempt"}` }), WORDS[kind] || kind))),
        h("span", {}, clock(range[1]))),
    ];
  });
}
