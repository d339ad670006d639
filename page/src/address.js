// The whole question in the page's address, so that a link gives the same view.

const PLAIN = ["model", "hardware", "kind", "batch", "seq", "tokens", "dtype", "precision",
  "optimizer", "prompt", "output", "rate", "tpot_s", "ttft_s", "job"];
const NUMBERS = new Set(["batch", "seq", "tokens", "prompt", "output", "rate", "tpot_s", "ttft_s"]);
const GROUPS = { mesh: "strategy", set: "words", x: "factors" };

const VIEW = "view";
export const PLAN = "plan";  // the first of the tabs
export const VIEWS = { [PLAN]: "Plan", live: "Live run", compare: "Compare" };

/** A number, or the text if it is none. */
const number = (text) => (text.trim() && Number.isFinite(Number(text)) ? Number(text) : text);

export function toHash(question) {
  const parts = new URLSearchParams();
  for (const name of PLAIN) {
    const value = question[name];
    if (value !== null && value !== undefined && value !== "") parts.set(name, value);
  }
  if (question.peak) parts.set("peak", "1");
  for (const [prefix, group] of Object.entries(GROUPS)) {
    for (const [name, value] of Object.entries(question[group] || {})) {
      // "tensor" is always there: without an axis, the link would ask for a search.
      if (group === "strategy" && value === 1 && name !== "tensor") continue;
      if (group === "factors" && value === 1) continue;
      parts.set(`${prefix}.${name}`, value);
    }
  }
  return `#${parts.toString().replaceAll("%3A", ":").replaceAll("%2C", ",")}`;
}

/** The address of an answer: that of a search asks for the search, and so for its alternatives too. */
export const addressOf = (frame) =>
  toHash(frame.searched ? { ...frame.question, strategy: null } : frame.question);

/** The tab that an address opens. */
export function viewOf(hash) {
  const view = new URLSearchParams(hash.replace(/^#/, "")).get(VIEW);
  return Object.hasOwn(VIEWS, view) ? view : PLAN;
}

/** An address with another tab; that of the plan is left out. */
export function withView(hash, view) {
  const question = hash.replace(/[#&]view=[^&]*/, "") || "#";
  return view === PLAN ? question : `${question}${question === "#" ? "" : "&"}${VIEW}=${view}`;
}

/** The question of an address, null if it has none. What is wrong in it is left for the server to refuse. */
export function fromHash(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  parts.delete(VIEW);
  if (![...parts.keys()].length) return null;
  const question = {};
  for (const [key, value] of parts) {
    const [prefix, name] = key.split(".", 2);
    if (name && Object.hasOwn(GROUPS, prefix)) {
      const group = (question[GROUPS[prefix]] ||= {});
      group[name] = number(value);
    } else if (key === "peak") question.peak = { 1: true, 0: false }[value] ?? value;
    else question[key] = NUMBERS.has(key) ? number(value) : value;
  }
  return question;
}
