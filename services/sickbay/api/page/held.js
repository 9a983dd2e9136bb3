// What is held, on probation, or in an operator's hands.

import { chip, h, keyed, named, plain, rowOf, show, tableOf } from "./dom.js";
import { clockText, countDown } from "./clock.js";
import { hrefOf, matches, wide } from "./model.js";

const ROWS_MAX = 50;
const HEADS = ["State", "Target", "Left", "Until", "Because", "Seq"];

/** A link to a scope's story: provider, and its model or that it is all of it. */
export function targetLink(scope) {
  const model = scope.model == null ? h("span", { class: "wide" }, wide(scope)) : named(scope.model);
  return h("a", { class: "target", href: hrefOf(scope) }, named(scope.provider, { class: "name provider" }), " ", model);
}

export class HeldList {
  constructor(root) {
    const { table, body } = tableOf("Held, on probation, and by operators", HEADS, { class: "rows held" });
    this.root = root;
    this.table = table;
    this.body = body;
    this.none = h("p", { class: "empty" });
    this.more = h("button", { type: "button", class: "plain", onclick: () => this.all() });
    this.isWhole = false;
  }

  all() {
    this.isWhole = !this.isWhole;
    this.render(...this.last);
  }

  /** Show the rows that match; answers how many do. */
  render(rows, sought) {
    // What comes while a person looks is shown as new; what a filter brings back is not.
    this.table.classList.toggle("settled", this.last?.[1] === sought && this.table.isConnected);
    this.last = [rows, sought];
    const seen = rows.filter((row) => matches(sought, row.provider, row.model, row.word, row.was, row.rule, row.because));
    if (!seen.length) {
      this.none.textContent = rows.length ? "Nothing held matches the filter." : "Nothing is held. Every target may be called.";
      show(this.root, this.none);
      return seen.length;
    }
    if (!this.table.isConnected) show(this.root, this.table, this.more);
    this.more.hidden = seen.length <= ROWS_MAX;
    this.more.textContent = this.isWhole ? `Show only ${ROWS_MAX}` : `Show all ${seen.length}`;
    keyed(this.body, this.isWhole ? seen : seen.slice(0, ROWS_MAX), {
      key: (row) => row.key,
      signature: (row) => JSON.stringify([row.word, row.was, row.because, row.untilMs, row.enforced, row.nth, row.later, row.seq]),
      make: (row) => rowElement(row, this.table.classList.contains("settled")),
      update: (element, row) => countDown(element.querySelector(".left"), row.endMs),
    });
    return seen.length;
  }
}

function rowElement(row, isNew) {
  const shadow = row.enforced === false ? h("span", { class: "note" }, "shadow: calls pass") : null;
  const was = row.was ? h("span", { class: "note" }, `was ${row.was}`) : null;
  const again = row.nth > 1 ? h("span", { class: "note" }, `${row.nth}. in a row`) : null;
  const later = row.later ? h("span", { class: "note" }, `${row.later} more since`) : null;
  const left = h("span", { class: "left" });
  const at = h("time", { datetime: new Date(row.untilMs).toISOString() }, clockText(row.untilMs));
  return rowOf(
    [
      ["State", [chip(row.word, row.sort), shadow, was]],
      ["Target", targetLink(row), "target"],
      ["Left", row.group === "probation" ? [h("span", { class: "soft" }, "at most "), left] : left, "number"],
      ["Until", at, "number"],
      ["Because", [h("bdi", { class: "because" }, plain(row.because)), again, later]],
      ["Seq", String(row.seq), "number soft"],
    ],
    { class: `g-${row.group}${isNew ? " new" : ""}` },
  );
}
