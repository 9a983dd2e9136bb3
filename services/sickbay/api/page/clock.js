// The log's clock, as the server tells it. The browser's wall clock takes no part: it may be wrong by hours.

let anchor = null; // {ms: log time, at: performance.now() when it was told}
const JITTER_MS = 300;
const JUMP_MS = 3_000;

/** The server says what time it is. True if that is a jump: this machine slept, or the log's clock stepped. */
export function told(ms) {
  const ahead = anchor === null ? Infinity : ms - logNow();
  // Answers arrive a little late by chance; a countdown that trembles with them would be no better than one that does not.
  if (Math.abs(ahead) > JITTER_MS) anchor = { ms, at: performance.now() };
  return Number.isFinite(ahead) && Math.abs(ahead) > JUMP_MS;
}

/** Log time now, in ms since the Unix epoch; null before the server said one. */
export const logNow = () => (anchor === null ? null : anchor.ms + performance.now() - anchor.at);

/** `14:03:22` of a log time; with the day where it is another one than today. */
export function clockText(ms) {
  const text = new Date(ms).toISOString();
  const now = logNow();
  const today = now === null || text.slice(0, 10) === new Date(now).toISOString().slice(0, 10);
  return today ? text.slice(11, 19) : `${text.slice(5, 10)} ${text.slice(11, 19)}`;
}

/** `9m 58s`: two units, whole seconds. */
export function duration(seconds) {
  const whole = Math.max(0, Math.ceil(seconds - 0.001));
  const units = [["d", 86_400], ["h", 3_600], ["m", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => whole >= size);
  if (first === -1) return "0s";
  const [unit, size] = units[first];
  const next = units[first + 1];
  const rest = next ? Math.floor((whole % size) / next[1]) : 0;
  const count = `${Math.floor(whole / size)}${unit}`;
  return next ? `${count} ${String(rest).padStart(2, "0")}${next[0]}` : count;
}

const ends = new WeakMap(); // element -> log time at which its countdown is over

/** Let an element count down to a log time. */
export function countDown(element, endMs) {
  element.classList.add("left");
  ends.set(element, endMs);
  shown(element);
}

function shown(element) {
  const now = logNow();
  if (now === null) return false;
  const left = (ends.get(element) - now) / 1000;
  const text = left > 0 ? duration(left) : "now";
  if (element.textContent !== text) element.textContent = text;
  return left <= 0;
}

/** Move every countdown on. True if one is over that was not: what it stood for has changed by time alone. */
export function tick() {
  let over = false;
  for (const element of document.querySelectorAll(".left")) {
    if (shown(element) && !element.dataset.over) {
      element.dataset.over = "1";
      over = true;
    } else if (element.dataset.over && element.textContent !== "now") delete element.dataset.over;
  }
  return over;
}
