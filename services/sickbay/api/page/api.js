// The HTTP API, and what it refuses.

const LIMIT_MS = 10_000;

/** The API said no. `status` 0: it did not answer at all. `field` and `accepted` where it names them. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the server answered ${status}`);
    this.status = status;
    this.field = problem.field;
    this.accepted = problem.accepted;
  }

  /** The whole of what was said, in one sentence. */
  get says() {
    const field = this.field && !this.message.includes(this.field) ? `${this.field}: ` : "";
    const accepted = this.accepted && !this.message.includes(this.accepted) ? `; accepted is ${this.accepted}` : "";
    return `${field}${this.message}${accepted}`;
  }
}

/** Ask; the answer's body, null where it has none. Throws `Refused`. */
export async function ask(path, { method = "GET", body, query } = {}) {
  const url = query ? `${path}?${new URLSearchParams(Object.entries(query).filter(([, value]) => value != null))}` : path;
  let response;
  try {
    response = await fetch(url, {
      method,
      // An answer carries times left, which a copy kept by the browser would tell again too late.
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
      signal: AbortSignal.timeout(LIMIT_MS),
      headers: { Accept: "application/json", ...(body ? { "Content-Type": "application/json" } : {}) },
      body: body ? JSON.stringify(body) : undefined,
    });
  } catch (error) {
    const why = error.name === "TimeoutError" ? `no answer in ${LIMIT_MS / 1000} s` : "the server does not answer";
    throw new Refused(0, { detail: why });
  }
  const text = await response.text().catch(() => "");
  let answer = null;
  try {
    answer = text ? JSON.parse(text) : null;
  } catch {
    if (response.ok) throw new Refused(response.status, { detail: "the server answered with something that is no JSON" });
  }
  if (!response.ok) throw new Refused(response.status, answer && typeof answer === "object" ? answer : {});
  return answer;
}

/** Everything of a paged status. */
export async function wholeStatus(query) {
  const found = await ask("/v1/status", { query: { limit: 1000, ...query } });
  for (let pages = 1; found.next && pages < 50; pages++) {
    const more = await ask("/v1/status", { query: { limit: 1000, ...query, after: found.next } });
    found.scopes.push(...more.scopes);
    found.next = more.next;
  }
  return found;
}
