// The pane of inputs: text fields that search again, and sliders that evaluate one strategy.
// A question that was refused has fields alone, to mend it.

import { html } from "htm/preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { seconds, stopText } from "./format.js";
import { Pane } from "./parts.js";

const TRAIN = [["model", "model", "models"], ["hardware", "hardware", "machines"],
  ["batch", "batch, sequences"], ["seq", "sequence, tokens"], ["tokens", "tokens of the run"],
  ["dtype", "dtype"]];
const SERVE = [["model", "model", "models"], ["hardware", "hardware", "machines"],
  ["prompt", "prompt, tokens"], ["output", "output, tokens"], ["batch", "batch (empty: best)"],
  ["rate", "requests a second"], ["tpot_s", "bound of TPOT, seconds"], ["dtype", "dtype"]];
const WORDS = new Set(["model", "hardware", "dtype"]);
const SCALE = { T: 1e12, B: 1e9, G: 1e9, M: 1e6, k: 1e3, s: 1, ms: 1e-3, us: 1e-6, "/s": 1 };

/** What is written in a field: a word, a number with its unit, null if empty; NaN if none of these. */
function read(name, text) {
  const value = text.trim();
  if (WORDS.has(name)) return value;
  if (!value) return null;
  const [, number, unit] = value.replaceAll(",", "").match(/^([0-9.]+(?:e[+-]?[0-9]+)?) *([a-zA-Z/]*)$/) || [];
  return number && (unit === "" || unit in SCALE) ? Number(number) * (SCALE[unit] || 1) : NaN;
}

const fieldsOf = (question) => (question.kind === "serve" ? SERVE : TRAIN);

/** The part of a refused question that has fields, in which it is mended, and the rest in words. */
export function mendable(question, defaults) {
  const kind = question.kind === "serve" ? "serve" : "train";
  const fields = { kind }, rest = { ...question };
  for (const name of ["kind", ...fieldsOf({ kind }).map(([field]) => field)]) {
    if (name in rest && (name !== "kind" || rest.kind === kind)) {
      fields[name] = rest[name];
      delete rest[name];
    }
  }
  const words = Object.entries(rest).filter(([name, value]) => value !== defaults[name])
    .flatMap(([name, value]) => Object.entries(value instanceof Object ? value : { [name]: value }));
  return { question: { ...defaults, ...fields }, rest: words.map((word) => word.join("=")).join(", ") };
}

export function Inputs({ question, rest, sliders, names, frozen, curves, moved, onAim, onSlide, onSearch, onProblems }) {
  const search = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const asked = { ...question, strategy: null, words: {} };
    const problems = [];
    for (const [name, label] of fieldsOf(question)) {
      asked[name] = read(name, form.get(name) || "");
      if (Number.isNaN(asked[name])) problems.push(
        `${label}: "${form.get(name)}" is no number. Write one as 1024, 15T, 30ms or 20/s.`);
    }
    if (problems.length) onProblems(problems);
    else onSearch(asked);
  };
  const turn = (kind) => {
    const batch = kind === "train" ? 1120 : null;
    onSearch({ ...question, kind, batch, strategy: null, words: {}, job: "" });
  };
  const fields = fieldsOf(question);
  const form = useRef(null);
  useLayoutEffect(() => {  // what was typed stays until there is an answer, and so does the focus
    if (!form.current) return;
    for (const [name] of fields) form.current.elements[name].value = question[name] ?? "";
  }, [JSON.stringify(question)]);
  const lists = useMemo(() => ["models", "machines"].map((list) => html`<datalist id=${list}>
    ${names[list].map((name) => html`<option value=${name} />`)}</datalist>`), [names]);
  return html`<${Pane} id="inputs" title="Inputs">
    ${!frozen && html`
      <div class="kinds" role="group" aria-label="work">
        ${["train", "serve"].map((kind) => html`<button type="button"
          aria-pressed=${question.kind === kind} onClick=${() => turn(kind)}>
          ${kind === "train" ? "training" : "serving"}</button>`)}
      </div>
      <form onSubmit=${search} ref=${form}>
        ${fields.map(([name, label, list]) => html`<label key=${name}>
          <span>${label}</span>
          <input name=${name} list=${list} autocomplete="off" spellcheck="false" />
        </label>`)}
        ${lists}
        <button type="submit" class="strong" title="search every legal split">Best</button>
      </form>`}
    ${frozen && html`<dl class="given">${fields.filter(([n]) => question[n] != null).map(
      ([name, label]) => html`<div><dt>${label}</dt><dd>${stopText(question[name])}</dd></div>`)}</dl>`}
    ${rest && html`<p class="quiet">Best asks for the fields above, without the rest of the link: ${rest}.</p>`}
    ${sliders.length > 0 && html`<p class="quiet">${frozen
      ? "How the answer changes along each choice, the others kept:"
      : "The curve under each is the chip time per token along its stops: a cross where there is no plan, a ring where it does not fit. Best searches again."}</p>`}
    ${sliders.map((slider) => html`<${Slider} key=${slider.name} slider=${slider}
      value=${moved[slider.name] ?? slider.value}
      frozen=${frozen} points=${curves[slider.name]} onAim=${onAim} onSlide=${onSlide}
      set=${slider.group === "words" && slider.name in question.words} />`)}
  </${Pane}>`;
}

function Slider({ slider, value, points, frozen, onAim, onSlide, set }) {
  const at = Math.max(0, slider.stops.indexOf(value));
  const text = stopText(value);
  const id = `slider-${slider.name}`;
  const move = (event) => onSlide(slider, Number(event.target.value));
  const aim = () => onAim(slider.name);
  const curve = useMemo(() => html`<${Curve} slider=${slider} points=${points} at=${at} />`,
    [slider.name, String(slider.stops), points, at]);
  return html`<div class="slider">
    <label for=${id}><span>${slider.label}${set ? " (kept)" : ""}</span>
      <output>${text}</output></label>
    ${!frozen && html`<input id=${id} type="range" min="0" max=${slider.stops.length - 1} step="1"
      value=${at} aria-valuetext=${`${text}${slider.follows ? `, ${slider.follows} follows` : ""}`}
      onInput=${move} onFocus=${aim} onPointerEnter=${aim} />`}
    ${curve}
  </div>`;
}

const LEAST_RANGE = Math.log(2);  // of a curve's height, so that a difference of some % looks small

/** Chip time per token along a slider: lower is better; a cross where there is no plan. */
function Curve({ slider, points, at }) {
  const width = 260, height = 40, edge = 8;
  if (!points || points.length !== slider.stops.length) {
    return html`<svg class="curve" viewBox=${`0 0 ${width} ${height}`} aria-hidden="true"></svg>`;
  }
  const logs = points.map((p) => (p.value ? Math.log(p.value) : null));
  const there = logs.filter((v) => v !== null);
  const low = Math.min(...there), span = Math.max(Math.max(...there) - low, LEAST_RANGE);
  const x = (i) => edge + (i * (width - 2 * edge)) / (points.length - 1);
  const y = (v) => height - 7 - ((v - low) / span) * (height - 14);
  const line = logs.map((v, i) => (v === null ? null : `${x(i)},${y(v)}`)).filter(Boolean);
  const best = logs.indexOf(low);
  const told = points.map((p, i) => `${stopText(slider.stops[i])}: ${
    p.problem ? "no plan" : seconds(p.value) + (p.fits ? "" : ", does not fit")}`).join("; ");
  return html`<svg class="curve" viewBox=${`0 0 ${width} ${height}`} role="img"
    aria-label=${`${slider.label}, chip time per token: ${told}`}>
    <polyline points=${line.join(" ")} />
    ${points.map((p, i) => p.problem
      ? html`<path class="no" d=${`M${x(i) - 3},${height - 10}l6,6m0,-6l-6,6`}>
          <title>${stopText(slider.stops[i])}: ${p.problem}</title></path>`
      : html`<circle cx=${x(i)} cy=${y(logs[i])} r=${i === at ? 4.5 : 2.5}
          class=${`${i === at ? "now" : ""} ${p.fits ? "" : "over"} ${i === best ? "best" : ""}`}>
          <title>${stopText(slider.stops[i])}: ${seconds(p.value)} of a chip per token, ${
            "batch" in p ? "TPOT" : "step"} ${seconds(p.seconds)}${
            p.fits ? "" : ", does not fit"}</title></circle>`)}
  </svg>`;
}
