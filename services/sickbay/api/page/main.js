// The page: what it keeps, when it asks again, and what it draws.

import { ask, wholeStatus } from "./api.js";
import { Health, isQuiet, renderReplicas, renderRoutes, renderWarnings } from "./around.js";
import { clockText, logNow, tick, told } from "./clock.js";
import { Detail } from "./detail.js";
import { byId, chip, h, plain, show } from "./dom.js";
import { Fetcher } from "./fetcher.js";
import { showBanner, showFreshness } from "./freshness.js";
import { HeldList } from "./held.js";
import { Live } from "./live.js";
import { DAY_MS, heldRows, keyOf, scopeOf, transition } from "./model.js";
import { Session } from "./session.js";
import { Timeline } from "./timeline.js";

const HISTORY_MAX = 5_000;
// The overview is made for all who ask, and may be two seconds old.
const OVERVIEW_MS = 2_500;
const FLOOD = 4;
const TITLES = { lost: "Connection lost", stale: "Stale" };

const known = { status: null, overview: null, history: { transitions: [], note: "" } };
const held = new HeldList(byId("held-list"));
const timeline = new Timeline(byId("timeline-list"));
const health = new Health(byId("health-list"));
let sought = "";

const complaints = new Map(); // what could not be fetched, and why

function fetcher(name, everyMs, fetchIt) {
  const onEnd = (error) => {
    if (error === null) complaints.delete(name);
    else if (error.status === 401 || error.status === 403) session.load().catch(() => null);
    else complaints.set(name, error.says ?? String(error));
    freshness();
  };
  return new Fetcher(async () => session.mayRead && fetchIt(), { everyMs, onEnd });
}

const fetchers = {
  status: fetcher("status", 10_000, async () => {
    const found = await wholeStatus();
    if (!session.mayRead) return; // signed out meanwhile
    known.status = found;
    told(Date.parse(known.status.at));
    drawHeld();
    // The first answer says what time it is, and by that what the last day is.
    if (known.history.fromMs === undefined) fetchers.history.due(0);
  }),
  overview: fetcher("overview", 20_000, async () => {
    const found = await ask("/v1/overview");
    if (!session.mayRead) return;
    known.overview = found;
    drawAround();
  }),
  history: fetcher("history", 300_000, async () => {
    if (logNow() === null) return;
    const fromMs = logNow() - DAY_MS;
    const found = await ask("/v1/history", { query: { from: new Date(fromMs).toISOString(), limit: HISTORY_MAX } });
    if (!session.mayRead) return;
    known.history = { fromMs, transitions: found.transitions, note: noteOf(found) };
    drawTimeline();
  }),
  // It says by itself what of it could not be read.
  detail: new Fetcher(() => detail.refresh(), { everyMs: 15_000, onEnd: () => null }),
};

function noteOf(found) {
  if (found.complete !== false) return "";
  const ms = Date.parse(found.known_from ?? "");
  return Number.isFinite(ms) ? `Only what came after ${clockText(ms)} is known here.` : "Not all of the day is known here.";
}

const session = new Session({ onChange: opened });
const detail = new Detail(byId("detail"), { session: () => session.now, onActed: () => fetchers.status.due(0), onRefused: () => session.load().catch(() => null) });
const live = new Live({
  onGap: () => {
    everything();
    setTimeout(() => fetchers.overview.due(0), OVERVIEW_MS);
    session.load().catch(() => null);
  },
  onEntry: (entry) => {
    fetchers.status.due();
    if (detail.scope && isAround(entry, detail.scope)) fetchers.detail.due();
  },
  onTransition: took,
  onBeat: (beat) => {
    if (told(beat.time_ms)) everything();
    freshness();
  },
  onLost: () => {
    freshness();
    session.load().catch(() => null);
  },
});

function everything() {
  for (const one of Object.values(fetchers)) one.due(0);
}

const isAround = (one, scope) => one.provider.split("#")[0] === scope.provider.split("#")[0] && (one.model == null || scope.model === null || one.model === scope.model);

/** Whoever looks has changed: show what they may see, or that it is closed. */
function opened() {
  byId("closed").hidden = session.mayRead;
  byId("body").hidden = !session.mayRead;
  const { name, anonymous, roles } = session.now;
  byId("closed-why").textContent =
    anonymous || !name ? "This Sickbay shows its fleet only to who signs in." : `The token of ${plain(name)} has ${roles.length ? `the role ${roles.join(", ")}` : "no role"}, not the role read.`;
  detail.act.draw();
  if (session.mayRead) {
    live.start();
    everything();
  } else {
    live.stop();
    Object.assign(known, { status: null, overview: null, history: { transitions: [], note: "" } });
    complaints.clear();
    for (const id of ["held-list", "timeline-list", "health-list", "warnings-list", "routes-list", "replicas-list", "summary"]) show(byId(id));
    if (detail.scope) location.hash = "";
  }
  route();
  freshness();
}

const toSay = [];
let sayTimer = null;

function took(fact) {
  const { transitions } = known.history;
  if (fact.id && transitions.some((one) => one.id === fact.id)) return;
  transitions.push(fact);
  if (transitions.length > HISTORY_MAX) transitions.splice(0, transitions.length - HISTORY_MAX);
  if (fact.type === "held" || fact.type === "released") {
    drawTimeline();
    say(fact);
  }
  const row = fact.type === "health" && known.overview?.health?.find((one) => keyOf(one) === keyOf(fact));
  if (row) {
    Object.assign(row, { health: fact.new, why: null, age_s: null });
    drawAround();
  }
  fetchers.overview.due(OVERVIEW_MS);
  fetchers.status.due();
  if (detail.scope && isAround(fact, detail.scope)) fetchers.detail.due();
}

/** Say changes to who listens: each of a few, the number of many. */
function say(fact) {
  toSay.push(fact);
  sayTimer ??= setTimeout(() => {
    sayTimer = null;
    const facts = toSay.splice(0);
    const lines = facts.map((one) => `${one.model ?? one.provider}: ${transition(one)}`);
    byId("announcer").textContent = plain(facts.length > FLOOD ? `${new Set(facts.map(keyOf)).size} targets changed` : lines.join(". "));
  }, 400);
}

function drawHeld() {
  if (known.status === null) return;
  const rows = heldRows(known.status);
  const seen = held.render(rows, sought);
  byId("filter-count").textContent = sought ? `${seen} of ${rows.length} held` : "";
  drawSummary(rows);
}

/** Draw something once before the next frame, however often it is called for. */
function soon(draw) {
  let isDue = false;
  return () => {
    if (!isDue) requestAnimationFrame(() => ((isDue = false), draw()));
    isDue = true;
  };
}

const drawTimeline = soon(() => {
  const now = logNow();
  if (now !== null && known.history.fromMs !== undefined) timeline.render(known.history, sought, now);
});

const drawAround = soon(() => {
  const found = known.overview;
  if (found === null) return;
  health.render(models(), sought, found.health_cut);
  renderWarnings(byId("warnings-list"), found.warnings, sought);
  renderRoutes(byId("routes-list"), found.routes, found.why);
  renderReplicas(byId("replicas-list"), found.replicas, found.why);
  if (known.status) drawSummary(heldRows(known.status));
});

/** The health of models; a host has none of its own. */
const models = () => known.overview.health.filter((row) => row.model !== null);

function drawSummary(rows) {
  const count = (group) => rows.filter((row) => row.group === group).length;
  const overview = known.overview;
  const targets = overview ? models() : [];
  const unwell = targets.filter((row) => !["healthy", "idle", "live", "unknown"].includes(row.health)).length;
  const facts = [
    ["Held", count("held"), "held"],
    ["On probation", count("probation"), "probation"],
    ["By operators", count("operator"), "operator"],
    ["Unwell targets", overview ? `${unwell} of ${targets.length}` : null, unwell ? "degraded" : ""],
    ["Warnings", overview?.warnings?.length ?? null, overview?.warnings?.length ? "throttled" : ""],
    ["Replicas", overview?.replicas?.filter((row) => !isQuiet(row)).length ?? null, ""],
  ].filter(([, value]) => value !== null);
  show(byId("summary"), ...facts.map(([label, value, sort]) => h("li", { class: value ? `t-${sort}` : null }, h("strong", {}, String(value)), " ", label)));
  const shadow = known.status?.shadow;
  if (shadow?.all || shadow?.rules?.length) {
    byId("summary").append(h("li", {}, chip("shadow", "degraded"), shadow.all ? " no rule is enforced, calls pass" : ` ${shadow.rules.join(", ")} not enforced`));
  }
}

/** Say how far what is shown can be relied on; loudly where it cannot. */
function freshness() {
  const state = session.mayRead ? live.state() : { word: "closed", ageS: null, seq: null };
  showFreshness(state, { asOf: known.status?.at, complaints: [...new Set(complaints.values())] });
  const scope = detail.scope;
  const title = [TITLES[state.word], scope && plain(scope.model ?? scope.provider), "Sickbay"].filter(Boolean).join(" · ");
  if (document.title !== title) document.title = title;
}

function route() {
  // The way to a part of the page leaves a story open.
  if (location.hash && !location.hash.startsWith("#target/")) return;
  detail.open(session.mayRead ? scopeOf(location.hash) : null);
}

byId("filter").addEventListener("input", (event) => {
  sought = event.target.value.trim().toLowerCase();
  drawHeld();
  drawTimeline();
  drawAround();
});
byId("filter-form").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && !typing && session.mayRead && !byId("main").inert) {
    event.preventDefault();
    byId("filter").focus();
  } else if (event.key === "Escape" && detail.scope && event.target.id !== "filter") closeDetail();
});
document.addEventListener("click", (event) => {
  if (event.target.closest?.("a.close")) {
    event.preventDefault();
    closeDetail();
    return;
  }
  // A whole row is as good as the link in it, for who uses a mouse and is not marking text.
  const row = event.target.closest?.("table.held tr");
  if (row && !event.target.closest("a, button") && !getSelection().toString()) row.querySelector("a")?.click();
});
addEventListener("hashchange", route);
addEventListener("resize", () => detail.inert());
// What is fixed below the bar has to know how high it is, with a banner and on a narrow screen.
new ResizeObserver(([bar]) => document.documentElement.style.setProperty("--bar", `${bar.borderBoxSize[0].blockSize}px`)).observe(byId("bar"));

function closeDetail() {
  history.pushState(null, "", location.pathname);
  route();
}

setInterval(() => {
  if (tick()) {
    fetchers.status.due();
    fetchers.detail.due();
  }
  live.check();
  freshness();
  if (!session.mayRead || live.state().word === "lost") return;
  for (const [name, one] of Object.entries(fetchers)) {
    // By time alone nothing is drawn anew under the hand of who is marking text in it.
    if (name !== "detail" || getSelection().isCollapsed) one.ripe();
  }
}, 250);
setInterval(() => session.mayRead && drawTimeline(), 60_000);

(function begin() {
  session
    .load()
    .then(() => {
      if (!session.mayRead) opened();
    })
    .catch(() => {
      showBanner("The server does not answer. Trying again …");
      setTimeout(begin, 2_000);
    });
})();
