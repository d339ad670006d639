// Requests to the server of the page. While sliders move, the last question counts.

export class Problems extends Error {
  constructor(problems) {
    super(problems.join(" "));
    this.problems = problems;
  }
}

async function answer(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problems(["The server of this page has ended. Start shardwise ui again."]);
  }
  const document = await response.json();
  if (!response.ok) throw new Problems(document.error.problems);
  return document;
}

const ask = (path, question, signal) =>
  answer(path, {
    method: "POST", headers: { "content-type": "application/json" },
    body: JSON.stringify(question), signal,
  });

export const start = () => answer("api/start");

const MOST_AHEAD = 64;  // answers
const ahead = new Map();  // of questions that may come next: as JSON -> a promise of the answer

/** The answer to a question, which may have been asked for ahead. */
export function frame(question) {
  const known = ahead.get(JSON.stringify(question));
  return known || ask("api/frame", question);
}

/** Ask for the answer to a question that is likely to come next; the promise ends when it is there. */
export function lookAhead(question) {
  const key = JSON.stringify(question);
  if (!ahead.has(key)) {
    const answered = ask("api/frame", question);
    answered.catch(() => ahead.delete(key));  // whoever asks the question gets the problem anew
    ahead.set(key, answered);
    if (ahead.size > MOST_AHEAD) ahead.delete(ahead.keys().next().value);
  }
  return ahead.get(key).catch(() => null);
}

export const curve = (question, slider, signal) => ask("api/curve", { question, slider }, signal);
export const run = (from) => answer(`api/run?from=${from}`);

/** A promise that ends when all questions asked for ahead are answered. */
export const lookedAhead = () => Promise.allSettled(ahead.values());

/** Calls `work` with the newest question, one at a time: those in between are left out.
 *
 * `work` gets a function too, which tells whether a newer question waits.
 */
export function newestOnly(work) {
  let busy = false;
  let waiting = null;
  async function go(item) {
    busy = true;
    try { await work(item, () => waiting !== null); } finally { busy = false; }
    if (waiting !== null) { const next = waiting; waiting = null; go(next); }
  }
  return (item) => { if (busy) waiting = item; else go(item); };
}
