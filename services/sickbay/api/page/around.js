// Health by provider and model, warnings, routes answered by a fallback, and replicas.

import { chip, h, keyed, named, plain, rowOf, show, tableOf } from "./dom.js";
import { clockText, duration, logNow } from "./clock.js";
import { targetLink } from "./held.js";
import { healthGroups, healthSort, healthWhy, healthWord, hrefOf, matches, warning } from "./model.js";

const MODELS_MAX = 12;
const WARNINGS_MAX = 12;
const QUIET_S = 600;
/** From so many answered calls on, half of them by a fallback is a warning. */
const SUSTAINED = 20;

const empty = (text) => h("p", { class: "empty" }, text);

/** One block a provider: how its models are in a line, then each of them. */
export class Health {
  constructor(root) {
    this.root = root;
    this.groups = h("div", { class: "groups" });
    this.cut = h("p", { class: "soft" });
    this.opened = new Set();
  }

  /** `isCut`: there are more targets than these. */
  render(rows, sought, isCut) {
    this.last = [rows, sought, isCut];
    const found = healthGroups(rows.filter((row) => matches(sought, row.provider, row.model, row.health)));
    if (!found.length) return show(this.root, empty(rows.length ? "No target matches the filter." : "No target has been heard of yet."));
    if (!this.groups.isConnected) show(this.root, this.groups, this.cut);
    this.cut.textContent = isCut ? `The first ${rows.length} targets; there are more.` : "";
    keyed(this.groups, found, {
      key: (group) => group.provider,
      signature: (group) => JSON.stringify([group.models.map((row) => [row.model, row.health, row.why]), this.opened.has(group.provider)]),
      make: (group) => this.block(group),
      update: (element, group) => ages(element, group.models),
    });
  }

  block(group) {
    const isOpen = this.opened.has(group.provider);
    const seen = isOpen ? group.models : group.models.slice(0, MODELS_MAX);
    const counts = group.counts.map(([word, count]) => chip(`${count} ${word}`, healthSort(word)));
    const more = h("button", { type: "button", class: "plain", onclick: () => this.toggle(group.provider) }, isOpen ? "Show fewer" : `Show all ${group.models.length}`);
    return h(
      "div",
      { class: "group" },
      h("h3", {}, h("a", { href: hrefOf({ provider: group.provider, model: null }) }, named(group.provider)), h("span", { class: "counts" }, ...counts)),
      h("ul", { class: "models" }, ...seen.map(modelRow)),
      group.models.length > MODELS_MAX ? more : null,
    );
  }

  toggle(provider) {
    if (!this.opened.delete(provider)) this.opened.add(provider);
    this.render(...this.last);
  }
}

function modelRow(row) {
  return h(
    "li",
    { "data-model": row.model ?? "" },
    h("a", { href: hrefOf(row) }, named(row.model ?? "")),
    chip(healthWord(row.health), healthSort(row.health)),
    h("span", { class: "soft why" }, h("span", {}, healthWhy(row)), h("span", { class: "age" })),
  );
}

function ages(element, models) {
  const found = element.querySelectorAll(".models .age");
  for (const [index, age] of found.entries()) {
    const { age_s: ageS, why } = models[index];
    const text = ageS == null ? "" : `${healthWhy({ why }) ? ", " : ""}${duration(ageS)} ago`;
    if (age.textContent !== text) age.textContent = text;
  }
}

/** Warnings of the last day, the latest first. */
export function renderWarnings(root, warnings, sought) {
  const found = warnings.filter((fact) => matches(sought, fact.provider, fact.model, warning(fact)));
  if (!found.length) return show(root, empty(warnings.length ? "No warning matches the filter." : "None."));
  const list = root.querySelector("ul") ?? h("ul", { class: "facts" });
  if (!list.isConnected) show(root, list);
  keyed(list, found.slice(0, WARNINGS_MAX), {
    key: (fact) => JSON.stringify([fact.provider, fact.model, fact.rule, fact.signature, fact.replica, fact.route]),
    signature: (fact) => JSON.stringify([fact.time_ms, fact.times]),
    make: (fact) =>
      h(
        "li",
        {},
        h("p", { class: "what" }, h("span", { class: "mark", "aria-hidden": "true" }, "▲ "), targetLink(fact)),
        h("p", {}, h("bdi", {}, plain(warning(fact)))),
        h("p", { class: "soft" }, `${clockText(fact.time_ms)}${fact.times > 1 ? `, ${fact.times} times` : ""}`),
      ),
  });
}

/** Routes, the most fallen back first. */
export function renderRoutes(root, routes, why) {
  if (routes === null) return show(root, empty(why ?? "Not known."));
  const found = [...routes].sort((a, b) => (b.fallback_share ?? 0) - (a.fallback_share ?? 0));
  if (!found.length) return show(root, empty("No call named its route lately."));
  const { table, body } = kept(root, "Routes", ["Route", "Answered", "By a fallback"]);
  keyed(body, found, {
    key: (row) => row.route,
    signature: (row) => JSON.stringify(row),
    make: (row) => {
      const share = Math.round((row.fallback_share ?? 0) * 100);
      const meter = h("meter", { min: 0, max: 100, high: 49, optimum: 0, value: share, "aria-hidden": "true" });
      return rowOf([["Route", named(row.route)], ["Answered", String(row.answered), "number"], ["By a fallback", [meter, ` ${share} %`, share >= 50 && row.answered >= SUSTAINED ? h("span", { class: "note" }, "sustained") : null], "number"]]);
    },
  });
  return table;
}

const heardAgoS = (row) => (logNow() === null || !row.last_heard ? null : Math.max(0, logNow() - Date.parse(row.last_heard)) / 1000);

/** Not heard of in the last ten minutes: it counts for no rule. */
export const isQuiet = (row) => !(heardAgoS(row) <= QUIET_S);

/** Replicas, those heard of last first. */
export function renderReplicas(root, replicas, why) {
  if (replicas === null) return show(root, empty(why ?? "Not known."));
  if (!replicas.length) return show(root, empty("None has been heard of."));
  const { table, body } = kept(root, "Replicas", ["Replica", "Last heard", "Outcomes"]);
  keyed(body, replicas, {
    key: (row) => row.replica,
    signature: (row) => JSON.stringify([row.outcomes, isQuiet(row)]),
    make: (row) =>
      rowOf([
        ["Replica", [named(row.replica), isQuiet(row) ? h("span", { class: "note" }, "quiet") : null]],
        ["Last heard", h("span", { class: "heard" }), "number"],
        ["Outcomes", String(row.outcomes ?? ""), "number"],
      ]),
    update: (element, row) => {
      const agoS = heardAgoS(row);
      element.querySelector(".heard").textContent = agoS === null ? "" : `${duration(agoS)} ago`;
    },
  });
  return table;
}

function kept(root, label, heads) {
  const old = root.querySelector("table");
  if (old) return { table: old, body: old.tBodies[0] };
  const made = tableOf(label, heads, { class: "rows small" });
  show(root, made.table);
  return made;
}
