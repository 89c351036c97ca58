// What changes a run: each is confirmed, by the run's name, and then asked once.

import { ask } from "./api.js";
import { h } from "./dom.js";

const WORDS = {
  hold: ["Hold", "guardrun takes its hands off: it watches and explains, and stops and restarts nothing, until it is let go. Training goes on."],
  unhold: ["Let go", "guardrun acts again."],
  restart: ["Restart", "This attempt ends now, and the next goes on from the newest checkpoint: the steps since then are lost."],
  trace: ["Trace 5 steps", "Every module's calls are timed for five steps, on 64 ranks at most. Each call takes some 30 µs more meanwhile; it ends by itself."],
};

export function confirmOrder(view, order) {
  const [title, words] = WORDS[order];
  const trouble = h("p", { class: "bad" });
  const go = h("button", { class: order === "restart" ? "danger main" : "main", onclick: async () => {
    go.disabled = true;
    try {
      await ask(`${view.path}/order`, { body: { order, run: view.run } });
      dialog.close();
    } catch (error) {
      trouble.replaceChildren(`${error.message}.`);
      go.disabled = false;
    }
    view.again();
  } }, `${title}: ${view.run}`);
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() },
    h("h2", {}, `${title}?`), h("p", {}, h("b", {}, view.run)), h("p", {}, words), h("p", { class: "soft small" }, "The run's journal keeps who asked, and that it was by guardctl web."), trouble,
    h("div", { class: "actions" }, go, h("button", { autofocus: true, onclick: () => dialog.close() }, "Leave it")));
  document.body.append(dialog);
  dialog.showModal();
}
