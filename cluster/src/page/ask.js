// Asks the controller with the access token of whoever looks.
const KEY = "tidemill-token";

// The controller says no, or nothing.
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

// The answer as a value; `patience` in milliseconds.
export async function ask(path, { method = "GET", patience = 15000, as = token.get(), signal, body = null } = {}) {
  const late = AbortSignal.timeout(patience);
  const either = signal ? AbortSignal.any([signal, late]) : late;
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: { Authorization: `Bearer ${as ?? ""}`, "Content-Type": "application/json" },
      body: method === "POST" ? JSON.stringify(body) : undefined,
      cache: "no-store",
      signal: either,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "The controller does not answer. Runs continue; this page tries again.");
  }
  const text = await answer.text();
  let value = null;
  try {
    value = JSON.parse(text);
  } catch {
    // It is told below.
  }
  if (!answer.ok) throw new Refused(answer.status, value?.error ?? `The controller answers ${answer.status}.`);
  if (value === null) throw new Refused(answer.status, "This page cannot understand the answer of the controller.");
  return value;
}

// A name as part of a path.
export const part = (name) => encodeURIComponent(name);
