// Elements, and words for numbers. All that a run says becomes text here, and nothing else: no markup is ever parsed.

const STEERING =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/** The same text, with what would turn it around or steer its reader written out. */
export function clean(text) {
  return String(text).replace(STEERING, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : clean(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== "") element.append(clean(child));
  }
}

/** An element: h("p", {class: "soft"}, "text", another). */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Show anew what depends on data, only where the data have changed: what a person has selected stays. */
export function patch(element, data, build) {
  const stamp = JSON.stringify(data);
  if (element.stamp === stamp) return;
  element.stamp = stamp;
  const made = build(data);
  element.replaceChildren(...(Array.isArray(made) ? made.flat(9) : [made]).filter((one) => one instanceof Node));
  element.hidden = !element.firstChild;
}

/** A table whose empty columns are left out. columns: [heading, text of a row, "number"?]. */
export function table(columns, rows, kind = () => "") {
  const used = columns.map(([heading, text, is]) => ({ heading, is, cells: rows.map(text) }))
    .filter((one) => one.cells.some((cell) => cell !== "" && cell !== null && cell !== undefined));
  const head = h("thead", {}, h("tr", {}, used.map((one) => h("th", { scope: "col", class: one.is }, one.heading))));
  const body = rows.map((row, n) =>
    h("tr", { class: kind(row) }, used.map((one) =>
      h("td", { class: one.is === "wide" ? "wide" : `narrow ${one.is || ""}`, "data-name": one.heading }, one.cells[n]))));
  return h("div", { class: "scroll" }, h("table", {}, head, h("tbody", {}, body)));
}

// Words -----------------------------------------------------------------------------------------------------------

const known = (value) => typeof value === "number" && Number.isFinite(value);
export const opt = (value, words) => (known(value) ? words(value) : "");
export const count = (value) => opt(value, (n) => Math.round(n).toLocaleString("en-US"));
export const percent = (value, digits = 0) => opt(value, (n) => `${(100 * n).toFixed(digits)}%`);

export function plural(n, word) {
  return `${count(n)} ${word}${n === 1 ? "" : "s"}`;
}

/** `4 min 32 s`, `3 d 2 h`. */
export function duration(value) {
  if (!known(value)) return "";
  const all = Math.max(0, value);
  if (all < 10) return `${all.toFixed(all < 1 ? 1 : 0)} s`;
  let left = Math.round(all);
  const parts = [];
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    const n = Math.floor(left / size);
    left -= n * size;
    if (n) parts.push(`${n} ${unit}`);
    if (parts.length === 2 || (parts.length && !n)) break;
  }
  return parts.join(" ") || "0 s";
}

/** How old something is, in whole seconds at least. */
export const age = (value) => duration(value < 10 ? Math.round(Math.max(0, value)) || 0 : value).replace(/\.0 s/, " s");

/** Of a step: `446 ms`, `2.31 s`. */
export function seconds(value) {
  return opt(value, (n) => n < 0.001 ? `${(n * 1e6).toFixed(0)} µs` : n < 1 ? `${(n * 1e3).toPrecision(3).replace(/\.0+$/, "")} ms`
    : n < 60 ? `${n.toPrecision(3)} s` : duration(n));
}

export function bytes(value) {
  return opt(value, (n) => {
    const units = ["B", "KB", "MB", "GB", "TB", "PB"];
    let at = 0;
    while (n >= 1000 && at < units.length - 1) [n, at] = [n / 1024, at + 1];
    return `${n >= 100 || at === 0 ? n.toFixed(0) : n.toPrecision(3)} ${units[at]}`;
  });
}

/** A loss, a norm, a rate: four digits, small ones as 3e-4. */
export function number(value) {
  return opt(value, (n) => {
    if (n === 0) return "0";
    const size = Math.abs(n);
    if (size < 1e-3 || size >= 1e6) return n.toExponential(2).replace(/\.?0+e/, "e");
    return String(Number(n.toPrecision(4)));
  });
}

/** The time of day here; with the date where it is another day's. */
export function clock(epoch, withSeconds = true) {
  if (!known(epoch)) return "";
  const then = new Date(epoch * 1000);
  const time = then.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: withSeconds ? "2-digit" : undefined });
  if (then.toDateString() === new Date().toDateString()) return time;
  return `${then.getFullYear()}-${String(then.getMonth() + 1).padStart(2, "0")}-${String(then.getDate()).padStart(2, "0")} ${time}`;
}

/** Seconds since the epoch of `2026-11-20T23:53:01.250Z`; null where that is none. */
export function epoch(text) {
  const found = typeof text === "string" ? Date.parse(text) : NaN;
  return Number.isFinite(found) ? found / 1000 : null;
}
