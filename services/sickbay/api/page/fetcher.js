// What is asked of the API again and again: once at a time, soon after a change, and again after a failure.

const SETTLE_MS = 120;
const AGAIN_MS = 2_000;
/** However much happens, the server is not asked more often than this. */
const APART_MS = 400;

/** One thing to fetch. `onEnd(error)` is told of each end, null for a good one. */
export class Fetcher {
  constructor(fetchIt, { everyMs, onEnd }) {
    this.fetchIt = fetchIt;
    this.everyMs = everyMs;
    this.onEnd = onEnd;
    this.timer = null;
    this.isRunning = false;
    this.isDueAgain = false;
    this.lastAt = -Infinity;
  }

  /** Fetch it in a moment; once more afterwards if it is being fetched right now. */
  due(inMs = SETTLE_MS) {
    const apartMs = this.lastAt + APART_MS - performance.now();
    if (this.isRunning) this.isDueAgain = true;
    else this.timer ??= setTimeout(() => this.run(), Math.max(inMs, apartMs));
  }

  /** Fetch it if nobody called for it for long: what changes by time alone. */
  ripe() {
    if (!this.isRunning && this.timer === null && performance.now() - this.lastAt > this.everyMs) this.due(0);
  }

  async run() {
    this.timer = null;
    this.isRunning = true;
    this.isDueAgain = false;
    this.lastAt = performance.now();
    let failed = null;
    try {
      await this.fetchIt();
    } catch (error) {
      failed = error;
    }
    this.isRunning = false;
    if (failed !== null && failed.status !== 401 && failed.status !== 403) this.due(AGAIN_MS);
    else if (this.isDueAgain) this.due();
    this.onEnd(failed);
  }
}
