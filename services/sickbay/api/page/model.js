// What the page says, made of what the API answers. Pure: no element, no clock, no network.

import { clockText, duration } from "./clock.js";

export const DAY_MS = 86_400_000;
const STATES = {
  quarantine: ["quarantined", "held"],
  throttle: ["throttled", "throttled"],
  breaker: ["breaker open", "held"],
  degraded: ["degraded", "degraded"],
  credential: ["credential refused", "held"],
  operator: ["held by operator", "operator"],
};
const HEALTH = {
  held: "operator", quarantined: "held", throttled: "throttled", unhealthy: "held", degraded: "degraded",
  live: "live", healthy: "healthy", idle: "idle", unknown: "idle",
};
export const HEALTH_WORDS = Object.keys(HEALTH);
const WARNS = {
  replica_suspect: (w) => `${w.replica} has nearly all of the bad ones while others are well: look at that machine`,
  pipeline_suspect: (w) => `${w.replica} damages texts itself: look at how it decodes answers`,
  novel_signature: (w) => `new: ${w.signature}`,
  familiar_signature: (w) => `again and again: ${w.signature}`,
  charset_absent: () => "damaged answers that name no charset",
  wrong_endpoint: () => "is called by a route that does not exist there: look at the caller's base URL",
  sustained_fallback: (w) => `route ${w.route} is mostly answered by a fallback`,
};
const WHY = {
  answer: "answered", readiness: "by its readiness checks", liveness: "by its liveness checks",
  strikes: "strikes below the threshold", faults: "faults below the threshold",
  bad_answers: "half of the bad answers that hold it", last_outcome: "the last outcome was bad",
};
const NOUNS = {
  strikes: "rejections", throttles: "throttles", faults: "faults", slow: "slow answers", bad: "bad answers", damage: "damaged answers",
};
const ENDED = {
  success: "by a good answer", clear: "by an operator's clear", wide_close: "as the whole host's hold ended",
  evidence_gone: "after an hour without evidence", uncheckable: "after answers that showed nothing", replaced: "replaced by another act",
};

/** Key of a scope among others. */
export const keyOf = ({ provider, model }) => JSON.stringify([provider, model ?? null]);
/** The place of a scope's story on this page. */
export const hrefOf = ({ provider, model }) =>
  `#target/${encodeURIComponent(provider)}${model == null ? "" : `/${encodeURIComponent(model)}`}`;

/** The scope that a location's hash names, null for none. */
export function scopeOf(hash) {
  const [kind, provider, model, ...rest] = hash.replace(/^#/, "").split("/");
  if (kind !== "target" || !provider || rest.length) return null;
  try {
    return { provider: decodeURIComponent(provider), model: model ? decodeURIComponent(model) : null };
  } catch {
    return null;
  }
}

/** What stands for a whole provider, in the place of a model. */
export const wide = ({ provider }) => (provider.includes("#") ? "the whole credential" : "the whole provider");

/** What began a hold: `12 × empty_output`, `2 × model_unavailable (404)`. */
export function cause(hold) {
  if (hold.rule === "operator") return hold.actor ? `${hold.actor}: ${hold.reason ?? ""}` : (hold.reason ?? "");
  const status = hold.status ? ` (${hold.status})` : "";
  return hold.kind ? `${hold.count ?? 1} × ${hold.kind}${status}` : `${hold.count ?? 1}`;
}

/** One row a hold and one an operator's record: operators' first, then what is held, then probation; the latest first. */
export function heldRows(status) {
  const rows = status.scopes.flatMap(scopeRows);
  const order = { operator: 0, held: 1, probation: 2 };
  return rows.sort((a, b) => order[a.group] - order[b.group] || b.seq - a.seq || (a.key < b.key ? -1 : 1));
}

/** The rows of one scope's document. */
export function scopeRows(scope) {
  const name = { provider: scope.provider, model: scope.model };
  const rows = [];
  const operator = scope.operator;
  if (operator) {
    const holds = operator.action === "hold";
    rows.push({
      ...name, key: `${keyOf(name)} ${operator.seq}`, group: "operator", rule: "operator",
      word: holds ? "held by operator" : "allowed by operator", sort: holds ? "operator" : "allowed",
      because: `${operator.actor}: ${operator.reason}`, endMs: scope.at_ms + operator.left_s * 1000, untilMs: operator.end_ms, seq: operator.seq,
    });
  }
  for (const hold of scope.holds ?? []) {
    if (hold.rule === "operator" && operator) continue;
    const held = hold.phase === "held";
    const [word, sort] = STATES[hold.rule] ?? [hold.rule, "held"];
    const after = hold.phase === "ramp" ? "coming back by parts" : "on probation";
    rows.push({
      ...name, key: `${keyOf(name)} ${hold.rule} ${hold.began_seq}`, rule: hold.rule, enforced: hold.enforced !== false,
      group: held ? "held" : "probation", word: held ? word : after, sort: held ? sort : "probation", was: held ? null : word,
      because: cause(hold), endMs: held ? scope.at_ms + hold.left_s * 1000 : hold.over_ms, untilMs: held ? hold.end_ms : hold.over_ms,
      seq: hold.began_seq, nth: hold.nth ?? 1, later: hold.later ?? 0,
    });
  }
  return rows;
}

/** What the rules have counted of a scope, in sentences. */
export function sentences(scope) {
  const by = (counts) => Object.entries(counts).filter(([, each]) => each[0]).map(([name, each]) => `${each[0]} by ${name}`).join(", ") || "by nobody named";
  const said = [];
  const add = (given, text) => given && said.push(text());
  add(WHY[scope.health_why] && !scope.holds.length, () => {
    const age = scope.health_age_s == null ? "" : `, ${duration(scope.health_age_s)} old`;
    return `health: ${healthWord(scope.health)}, ${WHY[scope.health_why]}${age}`;
  });
  for (const own of scope.alone ?? []) {
    said.push(`${own.replica} alone keeps it from itself, by ${own.rule}, for another ${duration(own.left_s)}: ${own.calls} calls in a minute`);
  }
  add(scope.outcomes, () => `${scope.outcomes} outcomes, ${scope.answers} answered, ${scope.rejections} rejected`);
  for (const [name, says] of Object.entries(scope.evidence ?? {})) {
    const { needed, record, alone } = says;
    const lately = record ? `this target has got over ${record} by itself since yesterday, so ${needed}` : "";
    if (scope.holds.some((hold) => hold.evidence === name)) {
      said.push(`${says.failures} ${NOUNS[name]} and ${says.answers} answers (${by(says.by)}); ${lately ? `${lately} were needed` : `${needed} in a row are enough`}`);
    } else if (says.points) {
      said.push(`${says.points} of ${says.weight * needed} points for ${NOUNS[name]} (${by(says.by)}); ${lately ? `${lately} in a row are needed` : `${needed} in a row hold it`}`);
    } else add(lately, () => `${lately} ${NOUNS[name]} in a row are needed`);
    add(alone, () => `${alone} fails where others are answered: ${alone} alone is held`);
  }
  add(scope.credential_strikes, () => `${scope.credential_strikes} refusals of the credential lately`);
  for (const hold of scope.holds) {
    add(hold.later, () => `${hold.later} more of the kind since ${hold.rule} began`);
    add(hold.by, () => `held for ${hold.by}, whose word it is: the next call of another replica looks`);
    add(hold.trial_from_ms, () => {
      const tried = (hold.nth ?? 1) - 1;
      const last = hold.last ? `, last by ${hold.last}` : "";
      const often = tried > 1 ? `tried ${tried} times${last}` : tried ? `tried once${last}` : "not tried yet";
      return `${hold.rule} ${often}; the next trial from ${clockText(hold.trial_from_ms)} on`;
    });
    add(hold.rule === "degraded" && (hold.clean_trials || hold.uncheckable), () => `${hold.clean_trials} clean trials so far, ${hold.uncheckable} that showed nothing`);
  }
  add(scope.ramp_until_ms, () => `replicas come back one part after the other until ${clockText(scope.ramp_until_ms)}`);
  add(scope.last_answer_ms, () => `last good answer ${duration((scope.at_ms - scope.last_answer_ms) / 1000)} ago, by ${scope.last_answer_by}`);
  return said;
}

export const healthSort = (word) => HEALTH[word] ?? "idle";
export const healthWord = (word) => (word === "live" ? "live: upstream unverified" : word);
export const healthWhy = (row) => WHY[row.why] ?? (row.why ? String(row.why).replaceAll("_", " ") : "");

/** Health by provider, the unwell first: [{provider, counts: [[word, count]], models}]. */
export function healthGroups(rows) {
  const rank = (row) => (HEALTH_WORDS.indexOf(row.health) + HEALTH_WORDS.length) % HEALTH_WORDS.length;
  const groups = new Map();
  for (const row of rows) {
    if (!groups.has(row.provider)) groups.set(row.provider, []);
    groups.get(row.provider).push(row);
  }
  const made = [...groups].map(([provider, models]) => {
    models.sort((a, b) => rank(a) - rank(b) || (a.model < b.model ? -1 : 1));
    const counts = HEALTH_WORDS.map((word) => [word, models.filter((row) => row.health === word).length]).filter(([, count]) => count);
    return { provider, models, counts, worst: rank(models[0]) };
  });
  return made.sort((a, b) => a.worst - b.worst || (a.provider < b.provider ? -1 : 1));
}

/** One warning in words. */
export const warning = (fact) => (WARNS[fact.rule] ?? (() => String(fact.rule).replaceAll("_", " ")))(fact);

/** One transition in words. */
export function transition(fact) {
  const shadow = fact.enforced === false ? " (shadow: not enforced)" : "";
  if (fact.type === "held") {
    const word = fact.old_end_ms == null ? "until" : "now until";
    const alone = fact.replica ? ` for ${fact.replica} alone` : "";
    const why = fact.rule === "operator" ? `, ${cause(fact)}` : fact.kind ? `, ${fact.kind}${fact.status ? ` (${fact.status})` : ""}` : "";
    return `held by ${fact.rule}${alone} ${word} ${clockText(fact.end_ms)}${why}${shadow}`;
  }
  if (fact.type === "released") {
    const who = fact.actor ? ` (${fact.actor}: ${fact.reason ?? ""})` : "";
    return `released from ${fact.rule} ${ENDED[fact.by] ?? `by ${fact.by}`}${who}${shadow}`;
  }
  if (fact.type === "health") return `${fact.old} → ${fact.new}`;
  return `warning: ${warning(fact)}`;
}

/**
 * The holds of a span as bars, by scope: [{provider, model, bars: [{rule, fromMs, toMs, …}], heldMs}], what is held
 * now first, then what was held longest. `toMs` is the end that a hold had, or the moment of its early release.
 */
export function lanes(transitions, fromMs, nowMs) {
  const found = new Map();
  for (const fact of transitions) {
    if (fact.type !== "held" && fact.type !== "released") continue;
    const key = keyOf(fact);
    if (!found.has(key)) found.set(key, { key, provider: fact.provider, model: fact.model ?? null, bars: new Map() });
    add(found.get(key).bars, fact, fromMs);
  }
  const made = [];
  for (const lane of found.values()) {
    const bars = [...lane.bars.values()].filter((bar) => bar.toMs > fromMs && bar.toMs > bar.fromMs);
    if (!bars.length) continue;
    bars.sort((a, b) => a.fromMs - b.fromMs);
    // What one replica was held from alone, or what shadow let pass, was not held from the fleet.
    const fleets = bars.filter((bar) => bar.replica === null && bar.enforced);
    made.push({ ...lane, bars, heldMs: covered(fleets, fromMs, nowMs), isHeld: fleets.some((bar) => bar.toMs > nowMs) });
  }
  return made.sort((a, b) => b.isHeld - a.isHeld || b.heldMs - a.heldMs || (a.key < b.key ? -1 : 1));
}

function add(bars, fact, fromMs) {
  const name = `${fact.rule} ${fact.began_seq}`;
  if (!bars.has(name) && fact.old_end_ms != null) renamed(bars, fact, name);
  const bar = bars.get(name);
  const enforced = fact.enforced !== false;
  if (fact.type === "released") {
    if (bar) bar.toMs = Math.min(bar.toMs, fact.time_ms);
    else bars.set(name, { rule: fact.rule, fromMs, toMs: Math.min(fact.end_ms, fact.time_ms), replica: null, enforced });
  } else if (bar && bar.replica === (fact.replica ?? null)) bar.toMs = fact.end_ms;
  else {
    // Its beginning lies before what is known if this only moved its end.
    const began = fact.old_end_ms == null || bar ? fact.time_ms : fromMs;
    bars.set(name, { rule: fact.rule, fromMs: began, toMs: fact.end_ms, replica: fact.replica ?? null, enforced });
  }
}

/** A failed trial begins a hold again under a new name: it is the same bar. */
function renamed(bars, fact, name) {
  const replica = fact.replica ?? null;
  for (const [old, bar] of bars) {
    if (bar.rule === fact.rule && bar.replica === replica && bar.toMs === fact.old_end_ms) {
      bars.delete(old);
      bars.set(name, bar);
      return;
    }
  }
}

function covered(bars, fromMs, nowMs) {
  let total = 0;
  let upTo = fromMs;
  for (const bar of bars) {
    const [from, to] = [Math.max(bar.fromMs, upTo), Math.min(bar.toMs, nowMs)];
    if (to > from) total += to - from;
    upTo = Math.max(upTo, to);
  }
  return total;
}

/** `quarantine ×3, breaker`: the rules of some bars. */
export function rulesOf(bars) {
  const counts = new Map();
  for (const bar of bars) counts.set(bar.rule, (counts.get(bar.rule) ?? 0) + 1);
  return [...counts].map(([rule, count]) => (count > 1 ? `${rule} ×${count}` : rule)).join(", ");
}

/** Does any of these texts hold the sought one? */
export const matches = (sought, ...texts) => !sought || texts.some((text) => text && String(text).toLowerCase().includes(sought));
