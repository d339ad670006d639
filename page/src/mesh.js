// The mesh picture: chips coloured by their coordinate on one axis, and what one of them holds.

import { html } from "htm/preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { whole } from "./format.js";
import { COLOURS, Pane, Table } from "./parts.js";

const MOST_COLUMNS = 64;

/** Where each chip is drawn: panels of columns × rows. */
function layout(mesh, width) {
  const [a, b = 1, ...outer] = mesh.shape;
  const isNodes = mesh.letters[1] === "node";
  const columns = isNodes ? Math.min(b, MOST_COLUMNS) : a;
  const rows = isNodes ? a : b;
  const perPlane = isNodes ? Math.ceil(b / columns) : 1;
  const panels = perPlane * outer.reduce((n, size) => n * size, 1);
  let cell = 22, across = 1;
  for (; cell > 1; cell--) {
    across = Math.max(1, Math.floor((width + 6) / (columns * cell + 6)));
    const down = Math.ceil(panels / across);
    if (columns * cell <= width && down * (rows * cell + 6) <= 330) break;
  }
  across = Math.min(across, panels);
  const down = Math.ceil(panels / across);
  return { isNodes, columns, rows, panels, perPlane, cell, across,
    width: across * (columns * cell + 6), height: down * (rows * cell + 6) };
}

/** The position of the chip drawn at (panel, column, row) along the axes of the machine. */
function position(mesh, drawn, panel, column, row) {
  const outer = [];
  let rest = Math.floor(panel / drawn.perPlane);
  for (const size of mesh.shape.slice(2)) { outer.push(rest % size); rest = Math.floor(rest / size); }
  if (!drawn.isNodes) return [column, row, ...outer];
  return [row, (panel % drawn.perPlane) * drawn.columns + column, ...outer];
}

export function coordinate(role, place) {
  let value = 0, scale = 1;
  for (const part of role.parts) {
    value += (Math.floor(place[part.axis] / part.stride) % part.size) * scale;
    scale *= part.size;
  }
  return value;
}

/** Red, green and blue of a coordinate. */
function colour(value, size) {
  if (size <= COLOURS.length) return [1, 3, 5].map((at) => parseInt(COLOURS[value].slice(at, at + 2), 16));
  const t = value / (size - 1);  // from dark blue to light yellow: lightness alone tells them apart
  return [255 * t, 32 + 200 * t, 110 - 60 * t].map(Math.round);
}

/** A colour as a pixel of image data, which all browsers' machines keep with its lowest byte first. */
const pixel = ([red, green, blue]) => (0xff << 24) | (blue << 16) | (green << 8) | red;

function panelText(mesh, drawn) {
  const [across, down, ...outer] = mesh.letters;
  if (drawn.isNodes) return "Each column is a node, its GPUs from top to bottom.";
  const wraps = mesh.letters.filter((_, i) => mesh.wrapped[i]);
  const panels = outer.length ? ` Each panel is one ${outer.join(", ")}.` : "";
  const links = wraps.length ? ` Links wrap around on ${wraps.join(", ")}.` : " No links wrap around.";
  return `${across} runs to the right${down ? `, ${down} downwards` : ""}.${panels}${links}`;
}

/** The slice of an array that a chip with these coordinates holds, as text. */
export function slice(array, coordinates, sizes) {
  const dims = array.dims.map((dim) => {
    let index = 0, count = 1;
    for (const axis of dim.axes) {
      if (!sizes[axis]) continue;
      index = index * sizes[axis] + coordinates[axis];
      count *= sizes[axis];
    }
    if (count === 1) return dim.size ? `${dim.letter}: all ${whole(dim.size)}` : `${dim.letter}: all`;
    if (!dim.size) return `${dim.letter}: part ${index + 1} of ${count}`;
    const from = Math.floor((index * dim.size) / count);
    const to = Math.max(from, Math.ceil(((index + 1) * dim.size) / count) - 1);
    return `${dim.letter}: ${whole(from)}–${whole(to)} of ${whole(dim.size)}`;
  });
  return dims.join(", ");
}

export function notation(array, sizes) {
  const dims = array.dims.map((dim) => {
    const axes = dim.axes.filter((axis) => sizes[axis]);
    return html`${dim.letter}${axes.length > 0 && html`<sub>${axes.join(",")}</sub>`}`;
  });
  return html`<span class="maths">${array.name}[${dims.map((d, i) => html`${i ? ", " : ""}${d}`)}]</span>`;
}

export function MeshPicture({ frame, frozen }) {
  const mesh = frame.mesh;
  const [roleName, choose] = useState("");
  const [chip, point] = useState([0, 0, 0]);  // panel, column, row
  const box = useRef(null), canvas = useRef(null);
  const [width, resize] = useState(520);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => resize(Math.floor(entry.contentRect.width)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const role = mesh.roles.find((r) => r.role === roleName) || mesh.roles[0];
  const drawn = useMemo(() => layout(mesh, Math.max(180, width)), [String(mesh.shape), width]);
  const sizes = Object.fromEntries(mesh.roles.map((r) => [r.role, r.size]));
  const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
  const at = [clamp(chip[0], drawn.panels), clamp(chip[1], drawn.columns), clamp(chip[2], drawn.rows)];
  const place = position(mesh, drawn, ...at);
  const coordinates = Object.fromEntries(mesh.roles.map((r) => [r.role, coordinate(r, place)]));

  const same = JSON.stringify([mesh.shape, mesh.roles]);  // most sliders leave the picture as it is
  useLayoutEffect(() => draw(canvas.current, mesh, drawn, role, at), [same, drawn, role && role.role, ...at]);

  const find = (event) => {
    const rect = canvas.current.getBoundingClientRect();
    const x = ((event.clientX - rect.left) / rect.width) * drawn.width;
    const y = ((event.clientY - rect.top) / rect.height) * drawn.height;
    const w = drawn.columns * drawn.cell + 6, h = drawn.rows * drawn.cell + 6;
    const panel = Math.floor(y / h) * drawn.across + Math.floor(x / w);
    const column = Math.floor((x % w) / drawn.cell), row = Math.floor((y % h) / drawn.cell);
    if (panel < drawn.panels && column < drawn.columns && row < drawn.rows) {
      point([panel, column, row]);
    }
  };
  const walk = (event) => {
    const step = { ArrowLeft: [0, -1, 0], ArrowRight: [0, 1, 0], ArrowUp: [0, 0, -1],
      ArrowDown: [0, 0, 1], PageUp: [-1, 0, 0], PageDown: [1, 0, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    point(at.map((value, i) => value + step[i]));
  };
  const where = mesh.letters.map((letter, i) => `${letter} ${place[i]}`).join(", ");
  const told = mesh.roles.map((r) => `${r.role} ${coordinates[r.role]} of ${r.size}`).join(" · ");
  return html`<${Pane} id="mesh" title=${`Mesh: ${whole(mesh.n_chips)} chips, ${frame.topology}`}>
    <div class="roles" role="group" aria-label="colour by the coordinate on">
      ${mesh.roles.map((r) => html`<button type="button" aria-pressed=${r === role}
        onClick=${() => choose(r.role)} title=${mesh.network[r.role]}>${r.role} ${whole(r.size)}</button>`)}
    </div>
    <div ref=${box} class="canvas"><canvas ref=${canvas} tabindex="0" role="img" onKeyDown=${walk}
      onMouseMove=${find} onClick=${find} style=${`width:${drawn.width}px`}
      aria-label=${role
        ? `Chips coloured by their coordinate on ${role.role}. Arrow keys walk from chip to chip.`
        : "One chip."} /></div>
    <p class="quiet">${panelText(mesh, drawn)} Outlined: the chips that share all but
      ${" "}${role ? role.role : "nothing"} with the chosen one.</p>
    <p class="chip" aria-live="polite"><strong>chip ${where}</strong>${told && ` · ${told}`}</p>
    <${Table} caption="what this chip holds" head=${["array", "this chip's slice"]}
      rows=${mesh.arrays.map((array) => [notation(array, sizes), slice(array, coordinates, sizes)])} />
    <details class="twin"><summary>Table: links of the mesh axes</summary>
      <${Table} caption="links of the mesh axes" head=${["axis", "chips", "links"]}
        rows=${mesh.roles.map((r) => [r.role, whole(r.size), mesh.network[r.role] || ""])} />
    </details>
  </${Pane}>`;
}

/** A function from a place to its coordinate on a role, by tables for the positions on each axis. */
function coordinates(mesh, role) {
  const tables = mesh.shape.map((size) => new Float64Array(size));
  let scale = 1;
  for (const part of role ? role.parts : []) {
    const table = tables[part.axis];
    for (let i = 0; i < table.length; i++) table[i] += (Math.floor(i / part.stride) % part.size) * scale;
    scale *= part.size;
  }
  return (place) => place.reduce((sum, i, axis) => sum + tables[axis][i], 0);
}

/** A function from a place to a number that all chips share which differ on `role` alone. */
function group(mesh, role) {
  const parts = mesh.roles.filter((r) => r !== role).flatMap((r) => r.parts);
  return coordinates(mesh, { parts });
}

/** Whether there is a chip at a place: the last panel of nodes may have fewer columns. */
const exists = (mesh, drawn, place) => !drawn.isNodes || place[1] < mesh.shape[1];

/** Calls `visit` with the place of each chip and where its cell begins, in CSS pixels. */
function forEachChip(mesh, drawn, visit) {
  for (let panel = 0; panel < drawn.panels; panel++) {
    for (let row = 0; row < drawn.rows; row++) {
      for (let column = 0; column < drawn.columns; column++) {
        const place = position(mesh, drawn, panel, column, row);
        if (exists(mesh, drawn, place)) visit(place, ...corner(drawn, panel, column, row));
      }
    }
  }
}

/** Where the cell of a chip begins, in CSS pixels. */
function corner(drawn, panel, column, row) {
  const left = (panel % drawn.across) * (drawn.columns * drawn.cell + 6);
  const top = Math.floor(panel / drawn.across) * (drawn.rows * drawn.cell + 6);
  return [left + column * drawn.cell, top + row * drawn.cell];
}

/** Fill the cells of all chips: pixels are written to memory, since 16,384 rectangles take long to paint. */
function fill(context, mesh, drawn, role, scale) {
  const filled = (drawn.cell - (drawn.cell > 5 ? 1 : 0)) * scale;  // cells that are not tiny have a gap
  const { width, height } = context.canvas;
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const valueAt = coordinates(mesh, role);
  const size = role ? role.size : 1;
  const colours = Array.from({ length: size }, (_, value) => pixel(colour(value, size)));
  forEachChip(mesh, drawn, (place, left, top) => {
    const from = (top * width + left) * scale;
    for (let y = 0; y < filled; y++) pixels.fill(colours[valueAt(place)], from + y * width, from + y * width + filled);
  });
  context.putImageData(image, 0, 0);
}

function draw(canvas, mesh, drawn, role, at) {
  const scale = Math.min(2, Math.ceil(globalThis.devicePixelRatio || 1));
  canvas.width = drawn.width * scale;
  canvas.height = drawn.height * scale;
  const context = canvas.getContext("2d");
  fill(context, mesh, drawn, role, scale);
  context.scale(scale, scale);
  const { cell } = drawn;
  const own = position(mesh, drawn, ...at);
  if (cell > 3) {
    const ownGroup = group(mesh, role);
    const same = ownGroup(own);
    const valueAt = coordinates(mesh, role);
    context.font = "10px sans-serif";
    forEachChip(mesh, drawn, (place, left, top) => {
      if (cell >= 18) {
        context.fillStyle = "#fff";
        context.strokeStyle = "#0009";
        context.lineWidth = 2;
        context.strokeText(valueAt(place), left + 3, top + 13);
        context.fillText(valueAt(place), left + 3, top + 13);
      }
      if (ownGroup(place) === same) mark(context, left, top, cell, false);
    });
  }
  if (exists(mesh, drawn, own)) mark(context, ...corner(drawn, ...at), cell, true);
}

/** Outline a cell: that of the chosen chip, or of one that shares all but the role with it. */
function mark(context, left, top, cell, isChosen) {
  context.lineWidth = isChosen ? 3 : 1.5;
  context.strokeStyle = isChosen ? "#d00" : "#000";
  context.strokeRect(left + 1, top + 1, cell - 2, cell - 2);
}
