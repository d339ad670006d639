// Numbers as text, as the terminal shows them: three digits, SI units.

const SI = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const GROUPED = new Intl.NumberFormat("en-US");  // made once: toLocaleString makes one every time
const TIMES = [[86400, "days"], [3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "us"]];

function digits(value, count = 3) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const power = Math.floor(Math.log10(Math.abs(value)));
  return value.toFixed(Math.min(12, Math.max(0, count - 1 - power)));
}

export function si(value, unit = "") {
  for (const [size, prefix] of SI) {
    if (Math.abs(value) >= size) return `${digits(value / size)} ${prefix}${unit}`;
  }
  return `${digits(value)} ${unit}`.trim();
}

export function seconds(value) {
  if (value === 0) return "0 s";
  for (const [size, unit] of TIMES) {
    if (Math.abs(value) >= size && (size < 60 || Math.abs(value) >= 2 * size)) {
      return `${digits(value / size)} ${unit}`;
    }
  }
  return `${digits(value * 1e9)} ns`;
}

/** Memory of a chip in binary units, as drivers and the terminal report it. */
export const gib = (value) => `${digits(value / 2 ** 30)} GiB`;
export const whole = (value) => GROUPED.format(Math.round(value));

export function stopText(value) {
  return typeof value === "number" ? GROUPED.format(value) : value;
}

export function meshText(mesh) {
  const parts = Object.entries(mesh).filter(([, size]) => size > 1);
  return parts.map(([role, size]) => `${role} ${whole(size)}`).join(" × ") || "one chip";
}
