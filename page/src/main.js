// The page: its state, and what happens when something is asked.

import { render } from "preact";
import { html } from "htm/preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { addressOf, fromHash, PLAN, toHash, viewOf, VIEWS, withView } from "./address.js";
import { Charts } from "./charts.js";
import { Compare } from "./comparison.js";
import { Inputs, mendable } from "./inputs.js";
import { Live, useRun } from "./live.js";
import { MeshPicture } from "./mesh.js";
import { Patterns } from "./parts.js";
import { Reasons } from "./reasons.js";
import * as server from "./server.js";

const CALM_MS = 700;  // without a move, before the curves are asked for
const STEPS_AHEAD = 2;  // of a slider that moves
const AIMED_MS = 60;  // on a slider, before the frames at both sides of it are asked for
const embedded = document.getElementById("frozen");
const frozen = embedded ? JSON.parse(embedded.textContent) : null;
const moves = (globalThis.shardwiseMoves = []);  // milliseconds from a slider's move to its paint

/** The answer to the last question that has one; above it, why a later question has none. */
function Answer({ frame, refused, problems, busy, onOpen }) {
  const question = frame ? frame.question : refused;
  const isNamed = question && question.model && question.hardware;
  const title = isNamed ? `${question.model} on ${question.hardware}` : "Shardwise";
  return html`<header class=${problems.length || (frame && !frame.fits) ? "answer bad" : "answer"} aria-live="polite">
    ${problems.length > 0 && html`<div role="alert"><ul class="problem">
      ${problems.map((p) => html`<li>${p}</li>`)}</ul></div>`}
    <h1>${problems.length > 0 && frame && html`<span class="quiet">The last answer is still shown: </span>`}${title}</h1>
    ${!frame && problems.length > 0 && html`<p class="headline">No plan: change the inputs and press Best.</p>`}
    ${frame && html`<p class="headline">${frame.headline}</p>
      <ul class="facts">${frame.numbers.filter((n) => n.primary).map((n) => html`<li>
        <button type="button" onClick=${() => onOpen(n.name)} title=${`${n.formula}: open its derivation`}>
          <span>${n.label}</span><strong>${n.value}</strong></button></li>`)}</ul>`}
    <div class="busy" hidden=${!busy}>searching …</div>
  </header>`;
}

/** Calls `work` when the next frame of the browser is drawn. */
function afterPaint(work) {
  requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = work;
    channel.port2.postMessage(0);
  });
}

/** The question after a move of a slider to a stop. */
function changed(question, slider, stop) {
  const change = slider.changes[stop];
  if (!slider.group) return { ...question, ...change };
  return { ...question, [slider.group]: { ...question[slider.group], ...change } };
}

/** Ask for the frames after the next steps of a slider until something moves; `by` is 1 or -1. */
async function lookAhead(frame, { name, by }, steps, isCalm) {
  const slider = frame.sliders.find((s) => s.name === name);
  const stop = slider ? slider.stops.indexOf(slider.value) + by : -1;
  if (!steps || !isCalm() || !slider || !slider.changes[stop]) return;
  const next = await server.lookAhead(changed(frame.question, slider, stop));
  if (next) await lookAhead(next, { name, by }, steps - 1, isCalm);
}

/** Whether two questions differ in the strategy alone, so that the search for one is that for the other. */
function sameWork(a, b) {
  const work = (question) => JSON.stringify({ ...question, strategy: null, words: null });
  return work(a) === work(b);
}

function App() {
  const [frame, show] = useState(frozen ? frozen.frame : null);
  const [moved, move] = useState({});  // sliders that wait for an answer: name -> value
  const [refused, refuse] = useState(null);  // the last question that has no answer
  const [best, keepBest] = useState(null);
  const [names, setNames] = useState({ models: [], machines: [] });
  const [defaults, setDefaults] = useState({});  // of a question's fields
  const [problems, fail] = useState([]);
  const [busy, wait] = useState(false);
  const [curves, setCurves] = useState(frozen ? frozen.curves : {});
  const [open, setOpen] = useState("");
  const [tab, turn] = useState(frozen && !frozen.frame ? (frozen.comparison ? "compare" : "live")
    : frozen ? PLAN : viewOf(location.hash));
  const [aimed, aim] = useState("");  // the slider under the pointer, or with the focus
  const [pinned, pin] = useState(null);
  const [hasRun, setRun] = useState(Boolean(frozen && frozen.run));
  const [records, runProblem] = useRun(hasRun, frozen && frozen.run);
  const asked = useRef(null);  // the question of the last move, until it is answered
  const movedAt = useRef(0), nMoves = useRef(0), waiting = useRef(null), ownHash = useRef("");
  // Whether the next address is one that the browser's Back leaves: a search's, or that of the first
  // of several moves in a row.
  const isStep = useRef(false), slidAt = useRef(0);

  /** A function that tells whether no slider has moved since. */
  const calm = () => {
    const count = nMoves.current;
    return () => nMoves.current === count;
  };
  const view = useRef(tab);  // for an address that is entered later
  const enter = (hash) => {
    ownHash.current = withView(hash, view.current);
    history[isStep.current ? "pushState" : "replaceState"](null, "", ownHash.current);
    isStep.current = false;
  };
  const turnTo = (name) => {
    turn(name);
    view.current = name;
    if (!frozen) history.replaceState(null, "", withView(location.hash, name));
    if (ownHash.current) ownHash.current = location.hash;
  };
  const ask = useMemo(() => server.newestOnly(async ({ question, isSearch, isLink, at, step }, isNewer) => {
    try {
      const next = await server.frame(question);
      if (step && !isNewer()) lookAhead(next, step, STEPS_AHEAD, calm());
      movedAt.current = at;
      show(next);
      if (isSearch) {
        keepBest(next.searched ? next : null);
        setCurves({});
      }
      fail([]);
      afterPaint(() => enter(addressOf(next)));
    } catch (error) {
      fail(error.problems || [String(error)]);
      if (isSearch) refuse(question);
      if (isLink) {  // what was shown is no answer to it
        show(null);
        ownHash.current = "";
      }
    }
    wait(false);
    if (asked.current === question || isSearch) {
      asked.current = null;
      move({});
    }
    document.body.dataset.answers = 1 + Number(document.body.dataset.answers || 0);
  }), []);

  useEffect(() => {
    if (frozen) return undefined;
    const fromAddress = () => {
      if (location.hash === ownHash.current) return;
      view.current = viewOf(location.hash);
      turn(view.current);
      const question = fromHash(location.hash);
      if (question) { wait(true); ask({ question, isSearch: true, isLink: true, at: 0 }); }
    };
    server.start().then((started) => {
      setNames(started.names);
      setDefaults(started.defaults);
      setRun(started.run);
      if (fromHash(location.hash)) return;
      fail(started.problems);
      show(started.frame);
      if (!started.frame) refuse(started.question);
      else if (started.frame.searched) keepBest(started.frame);
      enter(started.frame ? addressOf(started.frame) : toHash(started.question));
    }, (error) => fail(error.problems));
    fromAddress();
    addEventListener("hashchange", fromAddress);
    return () => removeEventListener("hashchange", fromAddress);
  }, []);

  useLayoutEffect(() => {  // a slider's move is drawn by the next frame of the browser
    if (!movedAt.current) return;
    const start = movedAt.current;
    movedAt.current = 0;
    afterPaint(() => moves.push(performance.now() - start));
  }, [frame]);

  useEffect(() => {  // curves of all sliders, when nothing moves any more
    if (frozen || !frame) return undefined;
    const stop = new AbortController();
    waiting.current = stop;
    const timer = setTimeout(async () => {
      await server.lookedAhead();
      for (const slider of frame.sliders) {
        if (stop.signal.aborted) return;
        try {
          const { points } = await server.curve(frame.question, slider.name, stop.signal);
          if (!stop.signal.aborted) setCurves((old) => ({ ...old, [slider.name]: points }));
        } catch { if (stop.signal.aborted) return; }
      }
      document.body.dataset.curves = frame.sliders.length;
      for (const { name } of frame.sliders) {  // the first moves of any of them
        for (const by of [1, -1]) await lookAhead(frame, { name, by }, STEPS_AHEAD, () => !stop.signal.aborted);
      }
      if (!stop.signal.aborted) document.body.dataset.ahead = frame.sliders.length;
    }, CALM_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
      delete document.body.dataset.curves;
      delete document.body.dataset.ahead;
    };
  }, [frame, problems, aimed]);  // a move that has no answer stops them too, until it is calm again

  useEffect(() => {  // a hand on a slider is about to move it
    if (frozen || !frame || !aimed) return undefined;
    const isCalm = calm();
    const timer = setTimeout(async () => {
      for (const by of [1, -1]) await lookAhead(frame, { name: aimed, by }, 1, isCalm);
    }, AIMED_MS);
    return () => clearTimeout(timer);
  }, [aimed]);

  const slide = (slider, stop) => {
    const at = performance.now();
    isStep.current ||= at - slidAt.current > CALM_MS;
    slidAt.current = at;
    nMoves.current += 1;
    if (waiting.current) waiting.current.abort();
    const question = changed(asked.current || frame.question, slider, stop);
    const value = moved[slider.name] ?? slider.value;
    const step = { name: slider.name, by: Math.sign(stop - slider.stops.indexOf(value)) };
    asked.current = question;
    move((others) => ({ ...others, [slider.name]: slider.stops[stop] }));
    ask({ question, isSearch: false, at, step });
  };
  const search = (question) => {
    wait(true);
    isStep.current = true;
    ask({ question, isSearch: true, at: 0 });
  };
  const openNumber = (name) => {
    setOpen(name);
    turnTo(PLAN);
    setTimeout(() => {
      const details = document.getElementById(`number-${name}`);
      if (details) { details.open = true; details.scrollIntoView({ block: "center" }); details.querySelector("summary").focus(); }
    });
  };
  const searched = best && frame && sameWork(best.question, frame.question) ? best : null;
  // Panes that are drawn again only with an answer, not with every move of a slider or curve.
  const mesh = useMemo(() => frame && html`<${MeshPicture} frame=${frame} />`, [frame]);
  const charts = useMemo(() => frame && html`<${Charts} frame=${frame} best=${searched}
    batches=${curves.batch} />`, [frame, searched, curves.batch]);
  const reasons = useMemo(() => frame && html`<${Reasons} frame=${frame} open=${open} />`, [frame, open]);
  const inputs = frame ? { question: frame.question, sliders: frame.sliders }
    : refused && defaults.kind && { ...mendable(refused, defaults), sliders: [] };
  const tabs = Object.entries(VIEWS).filter(([name]) =>
    !frozen || (name === "plan" && frame) || (name === "live" && frozen.run) || (name === "compare" && frozen.comparison));
  return html`<${Patterns} />
    <${Answer} frame=${frame} refused=${refused} problems=${problems} busy=${busy} onOpen=${openNumber} />
    ${tabs.length > 1 && html`<nav aria-label="views">${tabs.map(([name, title]) => html`<button type="button"
      aria-current=${tab === name ? "page" : undefined} onClick=${() => turnTo(name)}>${title}</button>`)}</nav>`}
    <main>
      ${tab === "plan" && inputs && html`<div class="panes">
        <${Inputs} ...${inputs} names=${names} frozen=${Boolean(frozen)} curves=${curves}
          moved=${moved} onAim=${aim} onSlide=${slide} onSearch=${search} onProblems=${fail} />
        ${mesh}${charts}${reasons}
      </div>`}
      ${tab === "live" && html`<${Live} records=${records} problem=${runProblem} />`}
      ${tab === "compare" && (frame || frozen) && html`<${Compare} frame=${frame} pinned=${pinned} onPin=${pin}
        comparison=${frozen && frozen.comparison} />`}
    </main>
    <footer>Shardwise${frame && ` ${frame.version}`}. Every number is computed on this machine by the
      Python core; nothing is sent elsewhere.</footer>`;
}

render(html`<${App} />`, document.getElementById("page"));
