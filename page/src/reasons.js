// Why this plan, and every number with its formula.

import { html } from "htm/preact";
import { useLayoutEffect, useState } from "preact/hooks";
import { Pane } from "./parts.js";

/** A number, whose derivation is made when it is opened. */
function Derived({ number, isAsked }) {
  const [isOpen, open] = useState(isAsked);
  useLayoutEffect(() => { if (isAsked) open(true); }, [isAsked]);
  return html`<details class="number" id=${`number-${number.name}`} open=${isOpen}
    onToggle=${(event) => open(event.currentTarget.open)}>
    <summary><span>${number.label}</span> <strong>${number.value}</strong></summary>
    ${isOpen && html`<dl>
      <dt>formula</dt><dd class="maths">${number.formula}</dd>
      <dt>numbers</dt><dd>${number.filled}</dd>
      <dt>book</dt><dd>${number.section}</dd>
      <dt>code</dt><dd><code>${number.source}</code></dd>
    </dl>`}
  </details>`;
}

export function Reasons({ frame, open }) {
  const rates = frame.rates;
  return html`<${Pane} id="reasons" title="Reasons and formulas">
    <ul class="why">${frame.why.map((reason) => html`<li>${reason}</li>`)}</ul>
    <p class="quiet">Expected times are at the rates of ${rates.name}, ${rates.as_of}: 80 % of
      published runs lie within ±${Math.round(100 * rates.spread)} %. The lower bound is at peak rates.</p>
    ${frame.numbers.map((number) => html`<${Derived} key=${number.name} number=${number}
      isAsked=${open === number.name} />`)}
  </${Pane}>`;
}
