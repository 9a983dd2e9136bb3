// The stream of changes, and whether what is shown can be relied on.

const BEAT_LOST_MS = 3_500;
/** So long a connection gets to open, and to say something. */
const SILENT_MS = 8_000;
const STALE_S = 3;
const RETRY_MS = [250, 500, 1_000, 2_000, 4_000];

/**
 * Follows /v1/watch. Whenever it (re)connects, everything may have changed in between: `onGap` is to fetch it anew.
 *
 * state()  {word: connecting | live | stale | lost, ageS, seq}: lost without a beat, stale when nobody writes the view
 */
export class Live {
  constructor({ onGap, onEntry, onTransition, onBeat, onLost }) {
    Object.assign(this, { onGap, onEntry, onTransition, onBeat, onLost });
    this.source = null;
    this.timer = null;
    this.tries = 0;
    this.isOpen = false;
    this.beat = null; // {at: performance.now(), ageS, seq}
    this.since = performance.now();
  }

  start() {
    this.stop();
    this.since = performance.now();
    this.beat = null;
    this.open();
  }

  stop() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.isOpen = false;
  }

  open() {
    this.triedAt = performance.now();
    const source = new EventSource("/v1/watch");
    this.source = source;
    const on = (type, take) =>
      source.addEventListener(type, (event) => {
        if (source === this.source) take(JSON.parse(event.data));
      });
    source.addEventListener("open", () => {
      if (source !== this.source) return;
      this.isOpen = true;
      this.onGap();
    });
    on("beat", (beat) => {
      this.tries = 0;
      this.beat = { at: performance.now(), ageS: beat.age_s ?? Infinity, seq: beat.seq };
      this.onBeat(beat);
    });
    on("entry", (entry) => this.onEntry(entry));
    on("transition", (transition) => this.onTransition(transition));
    source.addEventListener("error", () => {
      if (source === this.source) this.again();
    });
  }

  again() {
    this.stop();
    const wait = RETRY_MS[Math.min(this.tries++, RETRY_MS.length - 1)];
    this.timer = setTimeout(() => this.open(), wait * (0.8 + 0.4 * Math.random()));
    this.onLost();
  }

  /** A stream that stays open without a word is as dead as a closed one. */
  check() {
    const heardAt = Math.max(this.triedAt, this.beat?.at ?? 0);
    if (this.source && performance.now() - heardAt > SILENT_MS) this.again();
  }

  state() {
    const now = performance.now();
    if (this.beat === null) return { word: now - this.since > BEAT_LOST_MS ? "lost" : "connecting", ageS: null, seq: null };
    const quietMs = now - this.beat.at;
    const ageS = this.beat.ageS + quietMs / 1000;
    const word = quietMs > BEAT_LOST_MS || !this.isOpen ? "lost" : ageS > STALE_S ? "stale" : "live";
    return { word, ageS, seq: this.beat.seq };
  }
}
