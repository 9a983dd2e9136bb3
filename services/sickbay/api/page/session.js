// Who looks: signing in by a token, which becomes a cookie that no script can read, and out.

import { ask } from "./api.js";
import { byId, h, named, show } from "./dom.js";

const NOBODY = { name: null, roles: [], anonymous: true };

export class Session {
  /** `onChange` is told whenever who looks, or what they may, has changed. */
  constructor({ onChange }) {
    this.now = NOBODY;
    this.onChange = onChange;
    this.dialog = byId("sign-in");
    byId("sign-in-form").addEventListener("submit", (event) => (event.preventDefault(), this.signIn()));
    document.addEventListener("click", (event) => {
      const does = event.target.closest?.("[data-does]")?.dataset.does;
      if (does === "sign-in") this.ask();
      else if (does === "cancel") this.dialog.close();
      else if (does === "sign-out") this.signOut();
    });
  }

  get mayRead() {
    return this.now.roles.includes("read");
  }

  /** Ask the server who looks. Throws `Refused` only when it does not answer. */
  async load() {
    let found = NOBODY;
    try {
      found = { ...NOBODY, ...(await ask("/v1/session")) };
    } catch (error) {
      if (error.status !== 401 && error.status !== 403) throw error;
    }
    const changed = JSON.stringify(found) !== JSON.stringify(this.now);
    this.now = found;
    this.draw();
    if (changed) this.onChange();
  }

  draw() {
    const { name, roles, anonymous } = this.now;
    const who = anonymous || !name ? h("span", { class: "soft" }, roles.length ? "read-only" : "signed out") : h("span", {}, named(name), h("span", { class: "soft" }, ` ${roles.join(", ")}`));
    const button = anonymous || !name ? h("button", { type: "button", "data-does": "sign-in" }, "Sign in") : h("button", { type: "button", "data-does": "sign-out" }, "Sign out");
    const hadFocus = byId("session").contains(document.activeElement);
    show(byId("session"), who, " ", button);
    if (hadFocus) button.focus();
  }

  ask() {
    byId("sign-in-error").textContent = "";
    this.dialog.showModal();
    byId("token").focus();
  }

  async signIn() {
    const field = byId("token");
    const token = field.value.trim();
    try {
      await ask("/v1/session", { method: "POST", body: { token } });
    } catch (error) {
      byId("sign-in-error").textContent = error.status === 401 ? `No such token: ${error.says}` : error.says;
      field.select();
      return;
    }
    field.value = "";
    this.dialog.close();
    await this.load().catch(() => null);
  }

  async signOut() {
    await ask("/v1/session", { method: "DELETE" }).catch(() => null);
    await this.load().catch(() => null);
  }
}
