// Small parts that all panes use.

import { html } from "htm/preact";
import { useState } from "preact/hooks";

// Okabe and Ito's colours, which colour-blind people tell apart; patterns tell them apart in print.
export const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00",
  "#f0e442", "#8a8a8a"];

export const Patterns = () => html`
  <svg width="0" height="0" aria-hidden="true" style="position:absolute">
    <defs>
      ${COLOURS.map((colour, i) => html`
        <pattern id=${`fill${i}`} width="8" height="8" patternUnits="userSpaceOnUse"
          patternTransform=${`rotate(${[0, 45, 90, 135, 0, 45, 90, 135][i]})`}>
          <rect width="8" height="8" fill=${colour} />
          ${i > 0 && i < 4 && html`<rect width="2" height="8" fill="#fff" opacity=".55" />`}
          ${i >= 4 && html`<circle cx="4" cy="4" r="1.6" fill="#000" opacity=".45" />`}
        </pattern>`)}
      <pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse"
        patternTransform="rotate(45)">
        <rect width="7" height="7" fill="#d55e00" />
        <rect width="3" height="7" fill="#fff" opacity=".75" />
      </pattern>
    </defs>
  </svg>`;

/** The table twin of a chart, made when it is opened: a slider's move would redraw it unseen. */
export function Twin({ caption, head, rows }) {
  const [isOpen, open] = useState(false);
  return html`<details class="twin" onToggle=${(event) => open(event.currentTarget.open)}>
    <summary>Table: ${caption}</summary>
    ${isOpen && html`<${Table} caption=${caption} head=${head} rows=${rows} />`}
  </details>`;
}

export function Table({ caption, head, rows }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <caption class="unseen">${caption}</caption>
    <thead><tr>${head.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((cell, i) =>
      i ? html`<td>${cell}</td>` : html`<th scope="row">${cell}</th>`)}</tr>`)}</tbody>
  </table></div>`;
}

export const Pane = ({ id, title, children }) => html`
  <section id=${id} class="pane" aria-labelledby=${`${id}-title`}>
    <h2 id=${`${id}-title`}>${title}</h2>${children}
  </section>`;
