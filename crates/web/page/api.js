// Requests to the server that this page is from.

const KEY = "cairn-key";

/// Longest wait for an answer. A request that a hanging disk holds up must not hold up the page.
const PATIENCE = 15_000;

/// A refused or failed request, with the words of the server.
export class Refused extends Error {
  constructor(status, body) {
    super(body.message);
    this.status = status;
    this.next = body.next;
    this.kind = body.error;
  }
}

async function send(method, path, body, patience) {
  const end = new AbortController();
  const timer = setTimeout(() => end.abort(), patience);
  const headers = { "x-cairn": localStorage.getItem(KEY) ?? "none" };
  if (body !== undefined) headers["content-type"] = "application/json";
  try {
    const options = { method, headers, cache: "no-store", credentials: "same-origin", redirect: "error" };
    if (body !== undefined) options.body = JSON.stringify(body);
    const answer = await fetch(path, { ...options, signal: end.signal });
    const text = await answer.text();
    let read;
    try {
      read = text === "" ? null : JSON.parse(text);
    } catch {
      read = { message: `the answer cannot be read (${answer.status})`, next: "reload the page" };
    }
    if (!answer.ok) throw new Refused(answer.status, read ?? { message: `status ${answer.status}`, next: "" });
    return read;
  } catch (error) {
    if (error instanceof Refused) throw error;
    const message = end.signal.aborted
      ? `the server did not answer within ${patience / 1000} s`
      : "the server cannot be reached";
    throw new Refused(0, { message, next: "see whether it runs with `cairn status`", error: "unreachable" });
  } finally {
    clearTimeout(timer);
  }
}

/// Asks the API. Without a session the page shows the sign-in.
export async function call(method, path, body, patience = PATIENCE) {
  try {
    return await send(method, path, body, patience);
  } catch (error) {
    if (error.status === 401) document.dispatchEvent(new Event("cairn-signed-out"));
    throw error;
  }
}

export const get = (path) => call("GET", path);
export const post = (path, body = null) => call("POST", path, body, 120_000);

/// Waits until a job is over, and returns it. A job that failed is an error.
export async function jobDone(job) {
  let now = job;
  while (now.state === "running") now = await get(`/v1/jobs/${segment(job.id)}?within_ms=5000`);
  if (now.state === "failed") throw new Refused(0, now.error);
  return now;
}

/// A name as a part of a path.
export const segment = (name) => encodeURIComponent(name);

/// Reads the stream of changes, and calls `heard` for each of them, until it ends or `signal` ends
/// it. `begun` is called once it works.
export async function changes(signal, begun, heard) {
  const headers = { "x-cairn": localStorage.getItem(KEY) ?? "none" };
  const options = { headers, cache: "no-store", credentials: "same-origin", redirect: "error", signal };
  const answer = await fetch("/v1/changes", options);
  if (!answer.ok) throw new Refused(answer.status, { message: `status ${answer.status}`, next: "" });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  begun();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    if (value.includes("data:")) heard();
  }
}

/// How this page is signed in to, and whether it is.
export const session = () => send("GET", "/session", undefined, PATIENCE);

export async function signIn(secret) {
  const { key } = await send("POST", "/session", { secret }, PATIENCE);
  localStorage.setItem(KEY, key);
}

/// The key of a sign-in at the identity provider, and the view to return to.
const SIGN_IN_KEY = "cairn-oidc";

/// Goes to the identity provider. It sends the browser back to `/oidc`.
export async function leaveForProvider() {
  const { url, key } = await send("POST", "/session/oidc", undefined, PATIENCE);
  localStorage.setItem(SIGN_IN_KEY, JSON.stringify({ key, view: location.hash }));
  location.assign(url);
}

/// The key of the sign-in that this browser began last, and its view. It counts once.
export function takeSignIn() {
  try {
    return JSON.parse(localStorage.getItem(SIGN_IN_KEY)) ?? {};
  } catch {
    return {};
  } finally {
    localStorage.removeItem(SIGN_IN_KEY);
  }
}

/// Ends a sign-in with the parameters that the provider added to the address.
export async function returnFromProvider(kept, query) {
  const asked = { key: kept.key ?? "", state: query.get("state") ?? "" };
  for (const [field, name] of [["code", "code"], ["error", "error"], ["description", "error_description"]]) {
    if (query.has(name)) asked[field] = query.get(name);
  }
  const { key } = await send("POST", "/session/oidc/finish", asked, PATIENCE);
  localStorage.setItem(KEY, key);
}

export async function signOut() {
  try {
    await send("DELETE", "/session", undefined, PATIENCE);
  } finally {
    localStorage.removeItem(KEY);
  }
}
