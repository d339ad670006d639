// The charts: roofline, memory, timeline, latency against throughput, strategies.

import * as Plot from "@observablehq/plot";
import { html } from "htm/preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { gib, meshText, seconds, si, whole } from "./format.js";
import { Pane, Table, Twin } from "./parts.js";

/** A Plot that is drawn again when its options change. */
export function Drawn({ label, options }) {
  const box = useRef(null);
  const [width, resize] = useState(0);
  useLayoutEffect(() => {
    resize(Math.floor(box.current.getBoundingClientRect().width));
    const watch = new ResizeObserver(([entry]) => resize(Math.floor(entry.contentRect.width)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (!width) return;
    const plot = Plot.plot({ width: Math.min(width, 640), height: 260, marginLeft: 56,
      style: { background: "transparent", color: "inherit" }, ...options });
    for (const part of plot.querySelectorAll("[aria-label]")) part.removeAttribute("aria-label");
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", label);
    box.current.replaceChildren(plot);
  }, [options, width]);
  return html`<div class="plot" ref=${box}></div>`;
}

const PHASES = { forward: "circle", backward: "square", decode: "circle", prefill: "square" };

function rooflinePlot(data) {
  const points = data.points.filter((p) => p.intensity && p.flops_per_s);
  const knee = data.peak_flops / data.hbm_bytes_per_s;
  const all = [...points.map((p) => p.intensity), ...data.traffic.map((t) => t.intensity), knee];
  const low = Math.min(...all) / 2, high = Math.max(...all) * 2;
  const roof = (rate) => [low, data.peak_flops / rate, high]
    .filter((x) => x >= low && x <= high).sort((a, b) => a - b)
    .map((x) => ({ x, y: Math.min(data.peak_flops, x * rate) }));
  const floor = Math.min(...points.map((p) => p.flops_per_s), ...data.traffic.map((t) =>
    t.flops_per_s), data.peak_flops / 10) / 2;
  const top = 2 * Math.max(data.peak_flops, ...data.traffic.map((t) => t.flops_per_s));
  const slanted = data.traffic.map((t) => ({ ...t, roof: [
    { x: low, y: low * t.bytes_per_s }, { x: Math.max(high, low), y: high * t.bytes_per_s }] }));
  return {
    x: { type: "log", domain: [low, high], label: "FLOPs per byte", grid: true },
    y: { type: "log", domain: [floor, top], label: "FLOP/s of a chip",
      tickFormat: (v) => si(v), grid: true },
    r: { range: [2, 13] },
    marks: [
      Plot.line(roof(data.hbm_bytes_per_s), { x: "x", y: "y", strokeWidth: 2 }),
      ...slanted.map((t, i) => Plot.line(t.roof, { x: "x", y: "y", stroke: "#d55e00",
        strokeDasharray: ["6 3", "2 3", "9 3 2 3"][i % 3], clip: true })),
      Plot.dot(points, { x: "intensity", y: "flops_per_s", r: "time_s", fill: "#0072b2",
        fillOpacity: 0.55, stroke: "currentColor", symbol: (p) => PHASES[p.phase] || "triangle",
        title: (p) => `${p.name} ${p.phase}\n${p.expression}\n${seconds(p.time_s)}, ${whole(p.count)} times` }),
      Plot.dot(data.traffic, { x: "intensity", y: "flops_per_s", r: "time_s", symbol: "diamond",
        fill: "#d55e00", title: (t) => `${t.role} traffic, ${seconds(t.time_s)}` }),
      Plot.text(data.traffic, { x: "intensity", y: "flops_per_s", text: "role", dy: -14 }),
    ],
  };
}

function Roofline({ frame }) {
  const data = frame.roofline;
  const options = useMemo(() => rooflinePlot(data), [data]);
  const knee = data.peak_flops / data.hbm_bytes_per_s;
  return html`<figure><h3>Roofline</h3>
    <${Drawn} label="Roofline: FLOP/s over FLOPs per byte, a dot for each operation" options=${options} />
    <figcaption>Dots are operations, sized by their time at peak rates (squares: ${frame.question.kind === "serve" ? "prefill" : "backward"}); diamonds
      are the step's FLOPs per byte of an axis' traffic, under its dashed roof.
      Traffic above the solid roof takes less time than compute. HBM's knee is at ${si(knee)} FLOPs a byte.</figcaption>
    <${Twin} caption="operations of the roofline"
      head=${["operation", "phase", "count", "FLOPs/byte", "FLOP/s", "time"]}
      rows=${[...data.points.map((p) => [p.name, p.phase, whole(p.count),
        p.intensity ? si(p.intensity) : "–", p.flops_per_s ? si(p.flops_per_s) : "–",
        seconds(p.time_s)]), ...data.traffic.map((t) => [`${t.role} traffic`, "network", "",
        si(t.intensity), si(t.flops_per_s), seconds(t.time_s)])]} /></figure>`;
}

function Memory({ frame }) {
  const data = frame.memory;
  const most = Math.max(data.capacity, data.total + data.margin);
  const share = (value) => (100 * value) / most;
  let start = 0;
  const spans = data.parts.map((part, i) => {
    const span = { ...part, start, i };
    start += part.bytes;
    return span;
  });
  const limit = share(data.capacity - data.margin);
  return html`<figure><h3>Memory of a chip at its peak</h3>
    <svg class="bar" viewBox="0 0 400 76" role="img" aria-label=${
      `Memory of a chip: ${gib(data.total)} of ${gib(data.capacity)} in ${data.moment}`}>
      <rect x="0" y="14" width=${4 * share(data.capacity)} height="34" class="room" />
      ${spans.map((s) => html`<rect x=${4 * share(s.start)} y="14" width=${4 * share(s.bytes)}
        height="34" fill=${`url(#fill${s.i})`}><title>${s.name}: ${gib(s.bytes)}</title></rect>`)}
      <line x1=${4 * limit} x2=${4 * limit} y1="8" y2="54" class=${frame.fits ? "limit" : "limit over"} />
      <text x=${Math.min(396, 4 * limit)} y="68" text-anchor="end">limit ${
        gib(data.capacity - data.margin)}</text>
    </svg>
    <ul class="legend">${spans.map((s) => html`<li><svg width="14" height="14" aria-hidden="true">
      <rect width="14" height="14" fill=${`url(#fill${s.i})`} /></svg> ${s.name} ${gib(s.bytes)}</li>`)}</ul>
    <figcaption>At its fullest, in ${data.moment}: ${gib(data.total)};
      ${" "}${gib(data.margin)} of ${gib(data.capacity)} stay free for the compiler. ${data.left >= 0
        ? `${gib(data.left)} are left.` : html`<strong>${gib(-data.left)} too much.</strong>`}</figcaption>
    <${Twin} caption="memory of a chip" head=${["part", "bytes", "share"]} rows=${
      spans.map((s) => [s.name, gib(s.bytes), `${((100 * s.bytes) / data.total).toFixed(1)} %`])} />
  </figure>`;
}

const KINDS = { compute: "runs on the chip", hidden: "under compute", exposed: "exposed",
  bubble: "idle" };

function Timeline({ frame }) {
  const data = frame.timeline;
  const most = Math.max(data.seconds, ...data.rows.flatMap((r) => r.spans.map((s) => s.start + s.seconds)));
  const x = (value) => 92 + (300 * value) / most;
  const height = 24 + 30 * data.rows.length;
  return html`<figure><h3>Timeline of one ${data.unit}</h3>
    <svg class="bar" viewBox=${`0 0 400 ${height}`} role="img" aria-label=${
      `Timeline of one ${data.unit}, ${seconds(data.seconds)}; exposed traffic is hatched`}>
      ${data.rows.map((row, i) => html`<text x="88" y=${i * 30 + 20} text-anchor="end">${row.name}</text>
        ${row.spans.map((s, j) => html`<rect x=${x(s.start)} y=${i * 30 + 6}
          width=${Math.max(0.5, x(s.seconds) - x(0))} height="20" class=${s.kind}
          fill=${s.kind === "exposed" ? "url(#hatch)" : s.kind === "bubble" ? "#9a9a9a"
            : `url(#fill${s.kind === "hidden" ? 4 : j % 4})`}>
          <title>${s.name}: ${seconds(s.seconds)}</title></rect>`)}`)}
      <line x1=${x(data.seconds)} x2=${x(data.seconds)} y1="0" y2=${height - 16} class="limit" />
      <text x="396" y=${height - 4} text-anchor="end">${seconds(data.seconds)}</text>
    </svg>
    <figcaption>Exposed traffic is hatched and lengthens the ${data.unit}; dotted traffic runs under
      compute; grey is idle.</figcaption>
    <${Twin} caption=${`parts of one ${data.unit}`} head=${["part", "row", "kind", "time"]} rows=${
      data.rows.flatMap((row) => row.spans.map((s) => [s.name, row.name, KINDS[s.kind], seconds(s.seconds)]))} />
  </figure>`;
}

function paretoPlot({ serving, bound, front, own, line }) {
  const points = [...front, ...own, ...line];
  return {
    x: { type: "log", label: serving ? "seconds per output token" : "seconds of a step",
      tickFormat: (v) => seconds(v), ticks: 5 },
    y: { label: "tokens/s per chip", grid: true, zero: true },
    marks: [
      ...(bound && serving ? [Plot.rect([{}], { x1: Math.min(...points.map((p) => p.seconds)) / 1.2,
        x2: bound, y1: 0, y2: Math.max(...points.map((p) => p.rate)) * 1.1, fill: "#009e73",
        fillOpacity: 0.15 })] : []),
      Plot.line(line, { x: "seconds", y: "rate", stroke: "#0072b2" }),
      Plot.dot(line, { x: "seconds", y: "rate", stroke: "#0072b2", r: 3, title: "name" }),
      Plot.dot(front, { x: "seconds", y: "rate", symbol: "triangle", fill: "#e69f00", r: 6,
        title: (p) => `${p.name}\n${seconds(p.seconds)}, ${whole(p.rate)} tokens/s/chip` }),
      Plot.dot(own, { x: "seconds", y: "rate", symbol: "star", fill: "#d55e00", r: 9,
        title: () => "this plan" }),
    ],
  };
}

/** Latency against throughput: the front of the search, and the batches of this engine. */
function Pareto({ frame, best, batches }) {
  const serving = frame.question.kind === "serve";
  const bound = frame.question.tpot_s;
  const { points, options } = useMemo(() => {
    const front = (best || frame).pareto.filter((p) => !p.own);
    const own = frame.pareto.filter((p) => p.own);
    const line = (serving && batches || []).filter((p) => !p.problem).map((p) => ({
      seconds: p.seconds, rate: p.tokens_per_s_per_chip, name: `this engine, batch ${p.batch}` }));
    return { points: [...front, ...own, ...line],
      options: paretoPlot({ serving, bound, front, own, line }) };
  }, [frame, best, batches]);
  return html`<figure><h3>Latency and throughput</h3>
    <${Drawn} label="Throughput of a chip over latency" options=${options} />
    <figcaption>The star is this plan${points.some((p) => !p.own) ? `, ${serving
      ? "triangles are the front of the search, the line is this engine at other batches"
      : "triangles are the other strategies of the search"}` : ""}${bound && serving ? "; the shade is within the bound" : ""}.</figcaption>
    <${Twin} caption="latency and throughput" head=${["strategy", "time", "tokens/s/chip"]} rows=${
      points.map((p) => [p.name, seconds(p.seconds), whole(p.rate)])} /></figure>`;
}

const COLUMNS = [["strategy", (r) => meshText(r.mesh)], ["form", (r) => r.form],
  ["time", (r) => seconds(r.seconds), (r) => r.seconds],
  ["memory", (r) => gib(r.memory), (r) => r.memory], ["fits", (r) => (r.fits ? "yes" : "no")],
  ["why not", (r) => r.why]];

function Strategies({ frame, best }) {
  const [column, sort] = useState(2);
  const [own, ...more] = frame.strategies;
  const searched = best ? best.strategies.map((row, i) => (i ? row : { ...row, why: "the best of the search" })) : more;
  const rows = [own, ...searched.filter((row) => row.seconds !== own.seconds || meshText(row.mesh) !== meshText(own.mesh))];
  const key = COLUMNS[column][2] || COLUMNS[column][1];
  rows.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
  const head = COLUMNS.map(([name], i) => html`<button type="button" class="sort"
    aria-pressed=${i === column} onClick=${() => sort(i)}>${name}${i === column ? " ↑" : ""}</button>`);
  return html`<figure class="wide"><h3>Strategies</h3>
    <${Table} caption="strategies, sortable" head=${head}
      rows=${rows.map((row) => COLUMNS.map(([, text]) => text(row)))} /></figure>`;
}

export function Charts({ frame, best, batches }) {
  return html`<${Pane} id="charts" title="Charts"><div class="figures">
    <${Timeline} frame=${frame} /><${Memory} frame=${frame} />
    <${Roofline} frame=${frame} /><${Pareto} frame=${frame} best=${best} batches=${batches} />
    <${Strategies} frame=${frame} best=${best} />
  </div></${Pane}>`;
}
