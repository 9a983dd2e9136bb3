// How far what is shown can be relied on: in the head always, in a banner where it cannot be.

import { duration, logNow } from "./clock.js";
import { byId, chip } from "./dom.js";

const WORDS = {
  live: ["live", "healthy"], stale: ["stale", "degraded"], lost: ["connection lost", "held"],
  connecting: ["connecting", "idle"], closed: ["closed", "idle"],
};

/** `state` as `Live` has it; `asOf` the time of what is shown; `complaints` what could not be read. */
export function showFreshness({ word, ageS, seq }, { asOf, complaints }) {
  if (document.body.dataset.state !== word) {
    document.body.dataset.state = word;
    const made = chip(...WORDS[word]);
    made.id = "freshness-word";
    byId("freshness-word").replaceWith(made);
  }
  const age = ageS === null || !Number.isFinite(ageS) ? "" : ageS < 10 ? `${ageS.toFixed(1)} s` : duration(ageS);
  byId("freshness-age").textContent = age ? `view ${age} old · seq ${seq}` : "";
  const now = logNow();
  byId("clock").textContent = now === null || word === "closed" ? "" : `${new Date(now).toISOString().slice(11, 19)} UTC`;
  showBanner(bannerText(word, asOf, complaints), age);
}

function bannerText(word, asOf, complaints) {
  if (word === "lost" && asOf) return `Connection lost. What stands here is as of ${asOf.slice(11, 19)} UTC and moves on no more. Trying again …`;
  if (word === "lost") return "Connection lost: the server does not answer. Trying again …";
  if (word === "stale") return "The view is stale: no projector writes it. Routers go on with what they were last told; so does this page.";
  return complaints.length && word !== "closed" ? `Not all of it could be read: ${complaints.join("; ")}` : "";
}

/** Show a banner, or none. Its text changes only with what it says: it is read aloud. */
export function showBanner(text, age = "") {
  byId("banner").hidden = !text;
  if (byId("banner-text").textContent !== text) byId("banner-text").textContent = text;
  byId("banner-age").textContent = text && age ? `${age} old` : "";
}
