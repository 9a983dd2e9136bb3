// One target's story: may it be called, what holds it, what is known of it, what happened.

import { ask } from "./api.js";
import { Act } from "./act.js";
import { chip, h, keepingFocus, named, plain, show } from "./dom.js";
import { clockText, countDown, duration, logNow } from "./clock.js";
import { DAY_MS, hrefOf, lanes, keyOf, scopeRows, sentences, transition, wide } from "./model.js";
import { picture } from "./timeline.js";

const STORY_MAX = 100;
const REASONS = {
  ok: "Calls pass", quarantined: "Quarantined", throttled: "Throttled", breaker_open: "Breaker open", degraded: "Degraded output",
  credential: "The credential is refused", held_by_operator: "Held by an operator", allowed_by_operator: "Calls pass, by an operator's word",
  trial_taken: "Another replica tries it just now", ramp: "Coming back, a part of the replicas at a time",
};

export class Detail {
  constructor(root, { session, onActed, onRefused }) {
    this.root = root;
    this.scope = null;
    this.asked = 0;
    this.act = new Act({ session, onActed: () => (this.refresh(), onActed()), onRefused });
    this.state = h("div", { class: "state" });
    this.story = h("div", { class: "story" });
    this.error = h("p", { class: "error", role: "alert" });
  }

  /** Show a scope's story, or none. The focus goes to its heading, and back to where it came from. */
  open(scope) {
    if (scope && this.scope && keyOf(scope) === keyOf(this.scope)) return;
    if (!this.scope && scope) this.back = document.activeElement;
    const wasOpen = this.scope !== null;
    this.scope = scope;
    this.root.hidden = scope === null;
    document.body.classList.toggle("has-detail", scope !== null);
    this.inert();
    if (scope === null) {
      show(this.root);
      if (wasOpen) this.giveBack();
      return;
    }
    show(this.state, h("p", { class: "soft" }, "Asking …"));
    show(this.story);
    this.error.textContent = "";
    this.act.open(scope);
    show(this.root, this.head(), this.error, this.state, this.act.element, this.story);
    this.root.scrollTop = 0;
    this.heading.focus({ preventScroll: false });
    this.refresh();
  }

  /** The element that opened it may have been drawn anew since; its like has the same address. */
  giveBack() {
    const href = this.back?.getAttribute?.("href");
    const like = href && [...document.querySelectorAll("main a")].find((link) => link.getAttribute("href") === href);
    const to = this.back?.isConnected && this.back !== document.body ? this.back : like;
    (to || document.getElementById("held")).focus();
  }

  /** On a narrow screen it covers the rest, which then takes no focus. */
  inert() {
    const covers = this.scope !== null && matchMedia("(max-width: 1099px)").matches;
    document.getElementById("main").inert = covers;
  }

  head() {
    const { provider, model } = this.scope;
    this.heading = h("h2", { id: "detail-name", tabindex: "-1" }, model === null ? named(provider) : named(model));
    const close = h("a", { class: "button close", href: "#" }, "Close");
    const above = model === null ? wide(this.scope) : ["of ", h("a", { href: hrefOf({ provider, model: null }) }, named(provider, { class: "name provider" }))];
    return h("div", { class: "detail-head" }, h("div", {}, this.heading, h("p", { class: "soft" }, above)), close);
  }

  /** Ask again; what was shown stays until the answer is there. */
  async refresh() {
    const scope = this.scope;
    if (scope === null) return;
    const asked = ++this.asked;
    try {
      const since = logNow() === null ? null : new Date(logNow() - DAY_MS).toISOString();
      const query = { provider: scope.provider, model: scope.model };
      const [known, past] = await Promise.all([
        ask("/v1/explain", { query }),
        ask("/v1/history", { query: { ...query, from: since, limit: 1000 } }),
      ]);
      if (asked !== this.asked) return;
      this.error.textContent = "";
      this.render(known, past);
    } catch (error) {
      if (asked !== this.asked) return;
      this.act.offer(false);
      this.error.textContent = `Its story could not be read: ${error.says ?? error.message}`;
    }
  }

  render(known, past) {
    const rows = known.scopes.flatMap(scopeRows);
    this.act.offer(rows.length > 0);
    const nodes = [this.verdict(known, rows), ...rows.map((row) => this.holdCard(row))];
    keepingFocus(this.root, () => {
      show(this.state, nodes);
      show(this.story, this.known(known), this.day(past), this.happened(past), this.elsewhere());
    });
  }

  verdict(known, rows) {
    const decision = known.decision;
    if (!decision) {
      const text = rows.length ? "" : "No hold and no act on all of it. Its models may have their own.";
      return text ? h("p", { class: "verdict" }, text) : null;
    }
    const word = REASONS[decision.reason] ?? decision.reason;
    const parts = [chip(decision.allowed ? "may be called" : "not now", decision.allowed ? "healthy" : "held"), " ", decision.reason === "ok" ? null : word];
    if (!decision.allowed && decision.retry_in_s) {
      const left = h("span", { class: "left" });
      countDown(left, Date.parse(known.at) + decision.retry_in_s * 1000);
      parts.push(". Again in ", left);
    }
    if (decision.trial) parts.push(decision.allowed ? ". One leased trial at a time is wanted." : ". One early trial is wanted.");
    return h("p", { class: "verdict" }, ...parts);
  }

  holdCard(row) {
    const left = h("span", { class: "left" });
    countDown(left, row.endMs);
    const shadow = row.enforced === false ? ", in shadow: calls pass" : "";
    const of = row.model == null ? ` (${wide(row)})` : "";
    const was = row.was ? `, was ${row.was}` : "";
    return h(
      "div",
      { class: `card g-${row.group}` },
      h("p", {}, chip(`${row.word}${was}`, row.sort), of, shadow),
      h("p", {}, h("bdi", {}, plain(row.because))),
      h("p", { class: "soft" }, row.group === "probation" ? "at most " : "", left, " left, until ", clockText(row.untilMs), `, began at seq ${row.seq}`),
    );
  }

  known(known) {
    const parts = known.scopes
      .map((scope) => [scope, sentences(scope)])
      .filter(([, said]) => said.length)
      .map(([scope, said]) =>
        h("div", {}, h("h4", {}, scope.model == null ? named(scope.provider) : named(scope.model, { class: "name short" })), h("ul", { class: "said" }, ...said.map((text) => h("li", {}, plain(text))))),
      );
    return h("section", {}, h("h3", {}, "What is known"), ...(parts.length ? parts : [h("p", { class: "empty" }, "No event of it has been heard.")]));
  }

  day(past) {
    const nowMs = logNow();
    if (nowMs === null) return null;
    const found = lanes(past.transitions, nowMs - DAY_MS, nowMs);
    if (!found.length) return null;
    const rows = found.map((lane) => h("li", {}, found.length > 1 ? h("span", { class: "lane-name" }, lane.model === null ? wide(lane) : h("a", { class: "target", href: hrefOf(lane) }, named(lane.model))) : null, picture(lane.bars, nowMs - DAY_MS, nowMs)));
    const held = found.reduce((most, lane) => Math.max(most, lane.heldMs), 0);
    return h("section", {}, h("h3", {}, `Held ${duration(held / 1000)} of the last 24 hours`), h("ul", { class: "lanes narrow" }, ...rows));
  }

  happened(past) {
    const told = past.transitions.slice(-STORY_MAX).reverse();
    const rows = told.map((fact) =>
      h(
        "li",
        {},
        h("time", { class: "soft", datetime: new Date(fact.time_ms).toISOString() }, clockText(fact.time_ms)),
        h("span", {}, h("bdi", {}, plain(transition(fact))), fact.model !== this.scope.model && fact.model != null ? h("span", { class: "soft" }, " · ", named(fact.model, { class: "name short" })) : null),
        h("span", { class: "soft number" }, String(fact.cause_seq ?? "")),
      ),
    );
    const note = past.transitions.length > STORY_MAX ? `The newest ${STORY_MAX} of ${past.transitions.length}. ` : "";
    return h("section", {}, h("h3", {}, "What happened"), rows.length ? h("ol", { class: "happened" }, ...rows) : h("p", { class: "empty" }, "Nothing changed in the last 24 hours."), note ? h("p", { class: "soft" }, note) : null);
  }

  elsewhere() {
    const { provider, model } = this.scope;
    const query = new URLSearchParams(model === null ? { provider } : { provider, model });
    const words = [provider, model].filter((word) => word !== null).map(quoted).join(" ");
    return h("p", { class: "soft elsewhere" }, h("code", {}, `sickbay explain ${plain(words)}`), " ", h("a", { href: `/v1/explain?${query}` }, "as JSON"));
  }
}

const quoted = (word) => (/^[\w./:@#%+=,-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`);
