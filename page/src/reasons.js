// Why this plan, and every number with its formula.

import { html } from "htm/preact";
import { Pane } from "./parts.js";

export function Reasons({ frame, open, onOpen }) {
  const rates = frame.rates;
  return html`<${Pane} id="reasons" title="Reasons and formulas">
    <ul class="why">${frame.why.map((reason) => html`<li>${reason}</li>`)}</ul>
    <p class="quiet">Expected times are at the rates of ${rates.name}, ${rates.as_of}: 80 % of
      published runs lie within ±${Math.round(100 * rates.spread)} %. The lower bound is at peak rates.</p>
    ${frame.numbers.map((number) => html`<details class="number" id=${`number-${number.name}`}
      key=${number.name} open=${open === number.name}
      onToggle=${(event) => onOpen(number.name, event.target.open)}>
      <summary><span>${number.label}</span> <strong>${number.value}</strong></summary>
      <dl>
        <dt>formula</dt><dd class="maths">${number.formula}</dd>
        <dt>numbers</dt><dd>${number.filled}</dd>
        <dt>book</dt><dd>${number.section}</dd>
        <dt>code</dt><dd><code>${number.source}</code></dd>
      </dl>
    </details>`)}
  </${Pane}>`;
}
