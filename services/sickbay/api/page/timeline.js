// The holds of the last 24 hours: one lane a scope, one bar a hold. The words beside a lane say what its bars show.

import { h, keyed, plain, show, svg } from "./dom.js";
import { clockText, duration } from "./clock.js";
import { targetLink } from "./held.js";
import { DAY_MS, lanes, matches, rulesOf } from "./model.js";

const LANES_MAX = 25;
const RULES = ["quarantine", "breaker", "degraded", "throttle", "credential", "operator"];
const HOURS = [0, 4, 8, 12, 16, 20, 24];

const percent = (ms, fromMs) => `${(Math.min(Math.max((ms - fromMs) / DAY_MS, 0), 1) * 100).toFixed(3)}%`;

/** The bars of one lane as a picture with its own words. */
export function picture(bars, fromMs, nowMs) {
  const parts = bars.map((bar) => {
    const [from, to] = [Math.max(bar.fromMs, fromMs), Math.min(bar.toMs, nowMs)];
    const width = Math.max(0.15, (Math.max(to - from, 0) / DAY_MS) * 100);
    const kind = `bar r-${bar.rule}${bar.enforced ? "" : " shadow"}${bar.replica ? " alone" : ""}`;
    // A bar of a moment at the right edge would lie outside.
    const x = Math.min(((from - fromMs) / DAY_MS) * 100, 100 - width);
    return svg("rect", { class: kind, x: `${x.toFixed(3)}%`, width: `${width.toFixed(3)}%`, y: "2", height: "12" }, svg("title", {}, barText(bar)));
  });
  const hours = HOURS.slice(1, -1).map((hour) => {
    const x = percent(fromMs + (hour / 24) * DAY_MS, fromMs);
    return svg("line", { class: "hour", x1: x, x2: x, y1: "0", y2: "16" });
  });
  const words = bars.slice(-12).map(barText).join("; ");
  return svg("svg", { class: "lane", role: "img", "aria-label": words, height: "16", width: "100%" }, ...hours, ...parts);
}

function barText(bar) {
  const alone = bar.replica ? ` for ${plain(bar.replica)} alone` : "";
  const shadow = bar.enforced ? "" : ", not enforced";
  return `${bar.rule}${alone} ${clockText(bar.fromMs)} to ${clockText(bar.toMs)}${shadow}`;
}

function laneText(lane) {
  const held = lane.heldMs ? duration(lane.heldMs / 1000) : "the fleet was not held";
  return `${lane.isHeld ? "held now · " : ""}${rulesOf(lane.bars)} · ${held}`;
}

export class Timeline {
  constructor(root) {
    this.root = root;
    this.isWhole = false;
    this.rows = h("ul", { class: "lanes" });
    this.axis = h("div", { class: "axis", "aria-hidden": "true" });
    const keys = RULES.map((rule) => h("li", {}, svg("svg", { width: "18", height: "12", "aria-hidden": "true" }, svg("rect", { class: `bar r-${rule}`, width: "18", height: "12" })), ` ${rule}`));
    this.legend = h("ul", { class: "legend", "aria-label": "Colours of the bars" }, ...keys);
    this.more = h("button", { type: "button", class: "plain", onclick: () => this.all() });
    this.note = h("p", { class: "soft" });
    this.frame = h("div", { class: "timeline" }, this.legend, this.axis, this.rows, this.more, this.note);
  }

  all() {
    this.isWhole = !this.isWhole;
    this.render(...this.last);
  }

  render(history, sought, nowMs) {
    this.last = [history, sought, nowMs];
    const fromMs = nowMs - DAY_MS;
    const every = lanes(history.transitions, fromMs, nowMs);
    const found = every.filter((lane) => matches(sought, lane.provider, lane.model, rulesOf(lane.bars)));
    this.note.textContent = history.note ?? "";
    if (!found.length) {
      const text = every.length ? "No hold of the last 24 hours matches the filter." : "No hold in the last 24 hours.";
      show(this.root, h("p", { class: "empty" }, text), history.note ? this.note : null);
      return;
    }
    if (!this.frame.isConnected) show(this.root, this.frame);
    show(this.axis, HOURS.map((hour) => h("span", {}, hour === 24 ? "now" : new Date(fromMs + (hour / 24) * DAY_MS).toISOString().slice(11, 16))));
    const seen = this.isWhole ? found : found.slice(0, LANES_MAX);
    this.more.hidden = found.length <= LANES_MAX;
    this.more.textContent = this.isWhole ? `Show only ${LANES_MAX}` : `Show all ${found.length}`;
    keyed(this.rows, seen, {
      key: (lane) => lane.key,
      // Bars move with the clock: a lane is drawn anew once a minute, and when one of its holds changes.
      signature: (lane) => JSON.stringify([Math.floor(nowMs / 60_000), lane.bars]),
      make: (lane) =>
        h(
          "li",
          {},
          h("span", { class: "lane-name" }, targetLink(lane)),
          picture(lane.bars, fromMs, nowMs),
          h("span", { class: "lane-words soft" }, laneText(lane)),
        ),
    });
  }
}
