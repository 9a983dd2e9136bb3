// Hold, allow and clear, for who may operate: a reason, a second look, and what the API says to it.

import { ask } from "./api.js";
import { byId, h, named, plain, show } from "./dom.js";
import { wide } from "./model.js";

const ACTS = {
  hold: ["Hold", "Keeps every replica from it until the time is over."],
  allow: ["Allow", "Lets calls pass whatever the rules say, until the time is over."],
  clear: ["Clear", "Ends its holds and acts and forgets its counts, here and below."],
};
const LENGTHS = [["15 minutes", 900], ["30 minutes", 1800], ["1 hour", 3600], ["4 hours", 14_400], ["1 day", 86_400], ["7 days", 604_800]];

export class Act {
  constructor({ session, onActed, onRefused }) {
    this.session = session;
    this.onActed = onActed;
    this.onRefused = onRefused;
    this.element = h("section", { class: "act" });
    this.error = h("p", { class: "error", role: "alert" });
    this.done = h("p", { class: "done", role: "status" });
  }

  open(scope) {
    this.scope = scope;
    this.form = null;
    this.likely = null;
    this.error.textContent = this.done.textContent = "";
    this.draw();
  }

  /** What is likely wanted, now that its state is known: to clear what is held, else to hold. Only the first word counts:
   *  nothing may change under the hand of who is about to act. */
  offer(isHeld) {
    if (this.likely !== null) return;
    this.likely = isHeld ? "clear" : "hold";
    this.draw();
  }

  /** Draw it for who is signed in now. */
  draw() {
    if (!this.scope) return;
    if (!this.session().roles.includes("operate")) {
      this.form = null;
      const signIn = h("button", { type: "button", class: "plain", "data-does": "sign-in" }, "Sign in");
      show(this.element, h("p", { class: "soft" }, "To hold, allow or clear it, the role ", h("code", {}, "operate"), " is needed. ", signIn), this.error);
    } else if (this.likely === null) show(this.element);
    else if (!this.form) show(this.element, h("h3", {}, "Act"), this.made(), this.error, this.done);
  }

  made() {
    const choice = Object.entries(ACTS).map(([act, [word]]) => h("label", {}, h("input", { type: "radio", name: "act", value: act, checked: act === this.likely }), ` ${word}`));
    const lengths = LENGTHS.map(([text, seconds]) => h("option", { value: seconds, selected: seconds === 1800 }, text));
    this.says = h("p", { class: "soft", id: "act-says" });
    this.length = h("p", { class: "field" }, h("label", { for: "act-length" }, "For"), h("select", { id: "act-length", name: "for_s" }, ...lengths));
    this.button = h("button", { type: "submit", class: "primary" });
    this.form = h(
      "form",
      { onsubmit: (event) => (event.preventDefault(), this.submit()), onchange: () => this.chosen() },
      h("fieldset", {}, h("legend", { class: "unseen" }, "What to do"), ...choice),
      this.says,
      h("p", { class: "field" }, h("label", { for: "act-reason" }, "Reason"), h("input", { id: "act-reason", name: "reason", required: true, maxlength: 300, autocomplete: "off", placeholder: "why, for the log" })),
      this.length,
      h("p", {}, this.button),
    );
    this.chosen();
    return this.form;
  }

  get act() {
    return this.form.elements.act.value;
  }

  chosen() {
    const [word, says] = ACTS[this.act];
    this.says.textContent = says;
    this.length.hidden = this.act === "clear";
    this.button.textContent = `${word} …`;
  }

  async submit() {
    const { act, scope, form } = this;
    const reason = form.elements.reason.value.trim();
    const length = form.elements.for_s;
    this.error.textContent = this.done.textContent = "";
    if (!(await confirmed(act, scope, reason, act === "clear" ? null : length.selectedOptions[0].text))) return;
    const body = { provider: scope.provider, reason };
    if (scope.model !== null) body.model = scope.model;
    if (act !== "clear") body.for_s = Number(length.value);
    this.button.disabled = true;
    try {
      await ask(`/v1/${act}`, { method: "POST", body });
      this.done.textContent = `${{ hold: "Held", allow: "Allowed", clear: "Cleared" }[act]}. It is in the log.`;
      form.elements.reason.value = "";
      this.onActed();
    } catch (error) {
      this.error.textContent = `Refused: ${error.says ?? error.message}`;
      if (error.status === 401 || error.status === 403) this.onRefused();
    } finally {
      this.button.disabled = false;
      if (document.activeElement === document.body) (this.button.isConnected ? this.button : byId("detail-name")).focus();
    }
  }
}

/** A second look at what is about to happen to the whole fleet. */
function confirmed(act, scope, reason, length) {
  const dialog = byId("confirm");
  const [word] = ACTS[act];
  byId("confirm-title").textContent = `${word} it for the whole fleet?`;
  byId("confirm-yes").textContent = length === null ? word : `${word} for ${length}`;
  const model = scope.model === null ? wide(scope) : named(scope.model);
  show(byId("confirm-text"), h("p", { class: "target" }, named(scope.provider, { class: "name provider" }), " ", model), h("p", {}, "Reason: ", h("bdi", {}, plain(reason))));
  dialog.returnValue = "no";
  dialog.showModal();
  // An Enter that is held down must not say yes as well.
  byId("confirm-no").focus();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}
