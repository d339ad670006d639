// The tab of a live run.

import * as Plot from "@observablehq/plot";
import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { Drawn } from "./charts.js";
import { gib, seconds, whole } from "./format.js";
import { Pane, Twin } from "./parts.js";
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
  const has = (name) => records.some((record) => record[name] != null);
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
      <figure><h3>Loss</h3>${has("loss")
        ? html`<${Drawn} label="Loss by step" options=${loss} />` : html`<p>No record has a loss.</p>`}</figure>
      <figure><h3>Step time</h3>${has("step_s")
        ? html`<${Drawn} label="Seconds of a step, within the planned band" options=${times} />`
        : html`<p>No record has step_s, the seconds of a step.</p>`}
        <figcaption>${has("lower") && has("upper")
          ? "The band is planned: all communication hidden to none hidden."
          : "The records have no planned times, lower and upper, which would be a band."}</figcaption></figure>
    </div>
    <${Twin} caption=${`the last ${tail.length} steps`} head=${["step", "loss", "time", "planned", "MFU"]}
      rows=${tail.map((r) => [r.step, r.loss ?? "–", r.step_s != null ? seconds(r.step_s) : "–",
        r.lower != null ? `${seconds(r.lower)} – ${seconds(r.upper)}` : "–",
        r.mfu != null ? `${(100 * r.mfu).toFixed(1)} %` : "–"])} />
  </${Pane}>`;
}
