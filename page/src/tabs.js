// The other tabs: a live run, and two plans or a saved comparison side by side.

import * as Plot from "@observablehq/plot";
import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { Drawn } from "./charts.js";
import { gib, seconds, whole } from "./format.js";
import { Pane, Table, Twin } from "./parts.js";
import * as server from "./server.js";

const PERIOD_MS = 1000;
const MOST_ROWS = 50;

/** The records of the run that the page was opened with, as they come. */
export function useRun(isThere, frozen) {
  const [records, grow] = useState(frozen || []);
  const [problem, fail] = useState("");
  useEffect(() => {
    if (!isThere || frozen) return undefined;
    let from = 0, ended = false;
    async function poll() {
      try {
        const part = await server.run(from);
        from = part.next;
        if (part.records.length || part.restarted) {
          grow((old) => (part.restarted ? part.records : [...old, ...part.records]));
        }
        fail("");
      } catch (error) { fail(error.message); }
      if (!ended) setTimeout(poll, PERIOD_MS);
    }
    poll();
    return () => { ended = true; };
  }, [isThere]);
  return [records, problem];
}

export function Live({ records, problem }) {
  if (!records.length) {
    return html`<${Pane} id="live" title="Live run"><p>${problem
      || "No run yet. Open the page with one: shardwise ui --run FOLDER, the folder of shardwise train."}</p></${Pane}>`;
  }
  const last = records[records.length - 1];
  const every = Math.ceil(records.length / 1000);
  const shown = records.filter((_, i) => i % every === 0 || i === records.length - 1);
  const loss = { x: { label: "step" }, y: { label: "loss", grid: true }, marks: [
    Plot.line(shown.filter((r) => r.loss != null), { x: "step", y: "loss", stroke: "#0072b2" }),
    Plot.dot(shown.filter((r) => r.bad), { x: "step", y: "loss", symbol: "times", stroke: "#d55e00" })] };
  const times = { x: { label: "step" }, y: { label: "seconds of a step", grid: true, zero: true }, marks: [
    Plot.areaY(shown.filter((r) => r.lower != null && r.upper != null), { x: "step", y1: "lower",
      y2: "upper", fill: "#009e73", fillOpacity: 0.2 }),
    Plot.line(shown.filter((r) => r.step_s != null), { x: "step", y: "step_s", stroke: "#0072b2" })] };
  const tail = records.slice(-MOST_ROWS).reverse();
  return html`<${Pane} id="live" title=${`Live run: step ${last.step} of ${last.steps ?? "?"}`}>
    ${problem && html`<p class="problem">${problem}</p>`}
    <ul class="facts plain">
      ${last.loss != null && html`<li>loss <strong>${last.loss.toFixed(4)}</strong></li>`}
      ${last.step_s != null && html`<li>step <strong>${seconds(last.step_s)}</strong></li>`}
      ${last.tokens_per_s != null && html`<li>tokens/s <strong>${whole(last.tokens_per_s)}</strong></li>`}
      ${last.mfu != null && html`<li>MFU <strong>${(100 * last.mfu).toFixed(1)} %</strong></li>`}
      ${last.memory_bytes != null && html`<li>memory <strong>${gib(last.memory_bytes)}</strong></li>`}
      ${last.eta_s != null && html`<li>left <strong>${seconds(last.eta_s)}</strong></li>`}
    </ul>
    <div class="figures">
      <figure><h3>Loss</h3><${Drawn} label="Loss by step" options=${loss} /></figure>
      <figure><h3>Step time</h3><${Drawn} label="Seconds of a step, within the planned band" options=${times} />
        <figcaption>The band is planned: all communication hidden to none hidden.</figcaption></figure>
    </div>
    <${Twin} caption=${`the last ${tail.length} steps`} head=${["step", "loss", "time", "planned", "MFU"]}
      rows=${tail.map((r) => [r.step, r.loss ?? "–", r.step_s != null ? seconds(r.step_s) : "–",
        r.lower != null ? `${seconds(r.lower)} – ${seconds(r.upper)}` : "–",
        r.mfu != null ? `${(100 * r.mfu).toFixed(1)} %` : "–"])} />
  </${Pane}>`;
}

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
  const { rows, columns, title } = comparison;
  const most = Math.max(...rows.flatMap((row) => row.seconds.map((s) => s || 0)));
  const x = (value) => (250 * value) / most;
  const tall = 14 * columns.length + 8;
  return html`<${Pane} id="compare" title=${title}>
    <p class="headline">${comparison.headline}</p>
    ${comparison.notes.map((note) => html`<p>${note}</p>`)}
    <svg class="bar" viewBox=${`0 0 400 ${rows.length * tall}`} role="img"
      aria-label=${`Seconds by group: ${columns.join(", ")}`}>
      ${rows.map((row, i) => html`<text x="134" y=${i * tall + 18} text-anchor="end">${row.group}</text>
        ${row.seconds.map((value, j) => value && html`<rect x="140" y=${i * tall + 4 + 14 * j} height="12"
          width=${Math.max(0.5, x(value))} fill=${`url(#fill${j})`}>
          <title>${columns[j]}: ${seconds(value)}</title></rect>`)}`)}
    </svg>
    <ul class="legend">${columns.map((name, j) => html`<li><svg width="14" height="14" aria-hidden="true">
      <rect width="14" height="14" fill=${`url(#fill${j})`} /></svg> ${name}</li>`)}</ul>
    <${Table} caption="seconds by group" head=${["group", ...columns, "cause"]}
      rows=${rows.map((row) => [row.group, ...row.seconds.map((s) => (s ? seconds(s) : "–")), row.note])} />
    ${comparison.causes.length > 0 && html`<h3>Causes</h3>
      <ul class="why">${comparison.causes.map((cause) => html`<li>${cause}</li>`)}</ul>`}
  </${Pane}>`;
}
