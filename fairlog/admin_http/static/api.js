// What the node is asked. Each call ends: with the answer, or with one of the two errors below.

const PATIENCE_MS = 8000;

/** Nobody answered. */
export class Unreachable extends Error {}

/** The node answered, and said no; the message is its sentence. */
export class Refused extends Error {
  constructor(message, status, document) {
    super(message);
    this.status = status;
    this.document = document;
  }
}

async function call(path, options = {}) {
  let response;
  let document;
  try {
    response = await fetch(path, {
      ...options,
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    document = await response.json();
  } catch (error) {
    throw new Unreachable(String(error));
  }
  if (response.ok) return document;
  throw new Refused(document.error ?? document.message ?? document.reason ?? response.statusText, response.status, document);
}

export const cluster = () => call("/api/cluster");
export const brokers = () => call("/api/brokers");
export const transactions = () => call("/api/transactions");
export const sinks = () => call("/api/sinks");
export const groups = () => call("/api/groups");

export function topics(contains, after) {
  return call(`/api/topics?${new URLSearchParams({ contains, after })}`);
}

export function transactionalId(id) {
  return call(`/api/transactional-id?${new URLSearchParams({ id })}`);
}

/** How the node is. A node that is not well says so with a 503, which is an answer like any other. */
export async function health() {
  try {
    return await call("/health");
  } catch (error) {
    if (error instanceof Refused) return error.document;
    throw error;
  }
}

/** `token` is null for who has signed in. */
export function abort(transactionalId, transaction, token) {
  const shown = token === null ? {} : { authorization: `Bearer ${token}` };
  return change("/api/transactions/abort", { transactional_id: transactionalId, transaction }, shown);
}

export const me = () => call("/api/me");
export const signIn = (user, password) => change("/api/sign-in", { user, password });
export const signOut = () => change("/api/sign-out", {});

function change(path, document, headers = {}) {
  return call(path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify(document),
  });
}
