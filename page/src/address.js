// The whole question in the page's address, so that a link is a plan.

const PLAIN = ["model", "hardware", "kind", "batch", "seq", "tokens", "dtype", "precision",
  "optimizer", "prompt", "output", "rate", "tpot_s", "ttft_s", "job"];
const NUMBERS = new Set(["batch", "seq", "tokens", "prompt", "output", "rate", "tpot_s", "ttft_s"]);
const GROUPS = { mesh: "strategy", set: "words", x: "factors" };

export function toHash(question) {
  const parts = new URLSearchParams();
  for (const name of PLAIN) {
    const value = question[name];
    if (value !== null && value !== undefined && value !== "") parts.set(name, value);
  }
  if (question.peak) parts.set("peak", "1");
  for (const [prefix, group] of Object.entries(GROUPS)) {
    for (const [name, value] of Object.entries(question[group] || {})) {
      if (group === "strategy" && value === 1) continue;
      if (group === "factors" && value === 1) continue;
      parts.set(`${prefix}.${name}`, value);
    }
  }
  return `#${parts.toString().replaceAll("%3A", ":").replaceAll("%2C", ",")}`;
}

export function fromHash(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  if (![...parts.keys()].length) return null;
  const question = {};
  for (const [key, value] of parts) {
    const [prefix, name] = key.split(".", 2);
    if (name && GROUPS[prefix]) {
      const group = (question[GROUPS[prefix]] ||= {});
      group[name] = /^[0-9.e+-]+$/.test(value) ? Number(value) : value;
    } else if (key === "peak") question.peak = true;
    else if (PLAIN.includes(key)) question[key] = NUMBERS.has(key) ? Number(value) : value;
  }
  return question;
}
