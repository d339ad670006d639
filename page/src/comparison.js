// The tab of comparisons: two plans of this page, or a comparison that was saved.

import { html } from "htm/preact";
import { gib, seconds, whole } from "./format.js";
import { Pane, Table } from "./parts.js";

export function Compare({ frame, pinned, onPin, comparison }) {
  if (comparison) return html`<${Saved} comparison=${comparison} />`;
  return html`<${Pane} id="compare" title="Compare two plans">
    <p><button type="button" onClick=${() => onPin(frame)}>Keep this plan as the first</button></p>
    ${!pinned && html`<p>Keep a plan, change something, and come back: the difference is shown part by part.</p>`}
    ${pinned && html`<${Difference} first=${pinned.summary} second=${frame.summary} />`}
  </${Pane}>`;
}

function Difference({ first, second }) {
  const parts = [...new Set([...Object.keys(first.seconds), ...Object.keys(second.seconds)])];
  const rows = parts.map((part) => ({ part, change: (second.seconds[part] || 0) - (first.seconds[part] || 0) }))
    .sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
  let level = first.total;
  const steps = rows.map((row) => { const from = level; level += row.change; return { ...row, from, to: level }; });
  const most = Math.max(first.total, second.total, ...steps.map((s) => Math.max(s.from, s.to)));
  const x = (value) => 110 + (280 * value) / most;
  const bars = [{ part: "first", from: 0, to: first.total }, ...steps, { part: "second", from: 0, to: second.total }];
  const told = (change) => `${change > 0 ? "+" : "−"}${seconds(Math.abs(change))}`;
  return html`<p>first: ${first.name}<br />second: ${second.name}</p>
    <svg class="bar" viewBox=${`0 0 400 ${bars.length * 26}`} role="img"
      aria-label="How the time of the first becomes that of the second">
      ${bars.map((bar, i) => html`<text x="104" y=${i * 26 + 17} text-anchor="end">${bar.part}</text>
        <rect x=${x(Math.min(bar.from, bar.to))} width=${Math.max(1, Math.abs(x(bar.to) - x(bar.from)))}
          y=${i * 26 + 4} height="18" fill=${bar.change === undefined ? "url(#fill0)"
            : bar.change > 0 ? "url(#hatch)" : "url(#fill2)"} />`)}
    </svg>
    <${Table} caption="difference by part" head=${["part", "first", "second", "change"]} rows=${[
      ...rows.map(({ part, change }) => [part, seconds(first.seconds[part] || 0), seconds(second.seconds[part] || 0), told(change)]),
      [first.unit, seconds(first.total), seconds(second.total), told(second.total - first.total)],
      ["memory", gib(first.memory), gib(second.memory), gib(second.memory - first.memory)],
      ["tokens/s/chip", whole(first.tokens_per_s_per_chip), whole(second.tokens_per_s_per_chip), ""]]} />`;
}

/** A comparison saved by `shardwise compare --json`. */
function Saved({ comparison }) {
  return html`<${Pane} id="compare" title=${comparison.title}>
    <p class="headline">${comparison.headline}</p>
    ${comparison.names.map((name) => html`<p class="headline">${name}</p>`)}
    <div class="figures">${comparison.bars.map((chart) => html`<${Bars} ...${chart} />`)}</div>
    ${comparison.tables.map((table) => html`<h3>${table.caption}</h3><${Table} ...${table} />`)}
    ${comparison.causes.length > 0 && html`<h3>causes</h3>
      <ul class="why">${comparison.causes.map((cause) => html`<li>${cause}</li>`)}</ul>`}
  </${Pane}>`;
}

/** Bars of each row, one for each column, beside names that wrap and are never cut off. */
function Bars({ title, columns, rows }) {
  const most = Math.max(...rows.flatMap((row) => row.values));
  return html`<figure><h3>${title}</h3>
    <dl class="bars">${rows.map((row) => html`<dt>${row.name}</dt>
      <dd>${row.values.map((value, j) => html`<span>
        <svg width=${`${(70 * (value || 0)) / most}%`} height="12" aria-hidden="true">
          <rect width="100%" height="12" fill=${`url(#fill${j})`} /></svg>
        ${" "}<span class="unseen">${columns[j]} </span>${row.texts[j]}</span>`)}</dd>`)}</dl>
    <ul class="legend">${columns.map((name, j) => html`<li><svg width="14" height="14" aria-hidden="true">
      <rect width="14" height="14" fill=${`url(#fill${j})`} /></svg> ${name}</li>`)}</ul>
  </figure>`;
}
