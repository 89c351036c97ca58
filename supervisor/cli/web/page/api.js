// Asking guardctl web: the token, one question at a time for each view, none while nobody sees the page.

const KEY = "guardrun-token";
let skew = 0;

/** Seconds since the epoch by the server's clock: ages are counted by that. */
export const now = () => Date.now() / 1000 + skew;

/** Take the token out of the address, where it is kept by nobody, and remember it for this address and port. */
export function adopt() {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (!found) return;
  localStorage.setItem(KEY, found[1]);
  history.replaceState(null, "", "#/");
}

export function keep(token) {
  localStorage.setItem(KEY, token);
}

export class Trouble extends Error {
  constructor(status, said) {
    super(said.error || `the answer is ${status}`);
    this.status = status;
    this.said = said;
  }
}

/** {data, etag}; data is null where nothing has changed. Throws Trouble, or TypeError where nobody answers. */
export async function ask(path, { body, etag } = {}) {
  const headers = { "X-Guardrun-Token": localStorage.getItem(KEY) || "" };
  if (etag) headers["If-None-Match"] = etag;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: AbortSignal.timeout(75000),
  });
  const told = Number(answer.headers.get("x-guardrun-now"));
  if (told) skew = told - Date.now() / 1000;
  if (answer.status === 304) return { data: null, etag };
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Trouble(answer.status, data);
  return { data, etag: answer.headers.get("etag") };
}

const FIRST_S = 2;
const MOST_S = 30;

/** Asks again and again while the page is seen: path() or path, every() seconds. */
export class Poller {
  constructor(path, every, onData, onTrouble) {
    Object.assign(this, { path, every, onData, onTrouble, etag: null, failed: 0, timer: 0, ended: false, asking: false });
    this.seen = () => { if (!document.hidden) this.soon(); };
    document.addEventListener("visibilitychange", this.seen);
    this.tick();
  }

  end() {
    this.ended = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.seen);
  }

  soon() {
    clearTimeout(this.timer);
    this.tick();
  }

  async tick() {
    if (this.ended || this.asking || document.hidden) return;
    this.asking = true;
    let pause = FIRST_S;
    try {
      const path = typeof this.path === "function" ? this.path() : this.path;
      const { data, etag } = await ask(path, { etag: this.etag });
      if (this.ended) return;
      this.etag = etag;
      this.failed = 0;
      this.onTrouble(null);
      if (data) this.onData(data);
      pause = this.every();
    } catch (error) {
      if (this.ended) return;
      this.failed += 1;
      this.onTrouble(error);
      pause = Math.min(FIRST_S * 2 ** Math.min(this.failed, 6), MOST_S);
    } finally {
      this.asking = false;
    }
    this.timer = setTimeout(() => this.tick(), 1000 * pause);
  }
}
