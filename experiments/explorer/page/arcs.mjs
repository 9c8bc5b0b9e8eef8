// Lines between the words of the source, above, and of the translation, below: the wider the more weight.

import { cutShort, html, svg } from "./dom.mjs";
import { strengthsOf } from "./strengths.mjs";

const WORD = 44; // pixels for each word
const LONGEST_WORD = 16; // characters
const [LEFT, RIGHT] = [24, 96];
const [TOP, BOTTOM, HEIGHT] = [92, 224, 324];
const MIDDLE = (TOP + BOTTOM) / 2;
const LEAST = 0.03;

/** Returns arcs for what `map` of map.mjs gets, and for how many rows there is room: they stay where they are. */
export function arcs({ weights, rows, columns, links, choose, place, room = rows.length }) {
  const inner = Math.max(room, columns.length) * WORD;
  const x = (i, count) => LEFT + ((i + 0.5) / count) * inner;
  const truth = new Set(links.map(String));
  const strengths = strengthsOf(weights);
  const lines = rows.flatMap((word, t) =>
    columns.map((source, s) => {
      const weight = weights[t]?.[s] ?? 0;
      const isTrue = truth.has(`${t},${s}`);
      const strength = strengths[t]?.[s] ?? 0;
      if (strength < LEAST && !isTrue) return null;
      const said = `${word} looks at ${source}: ${weight.toFixed(3)}${isTrue ? ", a true link" : ""}`;
      const line = {
        d: curve(x(s, columns.length), x(t, room)),
        "data-cell": `${t},${s}`,
        "stroke-width": (0.5 + 7 * strength).toFixed(2),
        class: weight < 0 ? "arc below" : "arc",
      };
      return svg("path", line, svg("title", {}, said));
    }),
  );
  // In front of all arcs, each on a line of the paper's colour, or an arc would hide it.
  const truths = links.map(([t, s]) => {
    const d = curve(x(s, columns.length), x(t, room));
    return [svg("path", { d, class: "paper" }), svg("path", { d, class: "true" })];
  });
  const above = columns.map((word, s) =>
    label(word, x(s, columns.length), TOP - 8, -40, { "data-source": s }),
  );
  const below = rows.map((word, t) => label(word, x(t, room), BOTTOM + 16, 40, { "data-target": t }));
  const said = rows.map((word, t) => `${word}: ${strongest(weights[t] ?? [], columns)}`).join("; ");
  const width = LEFT + inner + RIGHT;
  return html(
    "div",
    { class: "scrolled", "data-kept": `${place}-arcs` },
    svg(
      "svg",
      {
        class: "arcs",
        viewBox: `0 0 ${width} ${HEIGHT}`,
        width,
        height: HEIGHT,
        role: "img",
        "aria-label": `each word of the translation and the source word that it looks at most: ${said}`,
        onclick: (event) => {
          const pointed = event.target.closest("[data-cell]")?.dataset.cell;
          if (pointed) choose(pointed.split(",").map(Number));
        },
      },
      lines,
      truths,
      above,
      below,
    ),
  );
}

function curve(from, to) {
  return `M ${from} ${TOP} C ${from} ${MIDDLE}, ${to} ${MIDDLE}, ${to} ${BOTTOM}`;
}

function label(word, x, y, turn, data) {
  const place = { x, y, transform: `rotate(${turn} ${x} ${y})` };
  return svg("text", { ...place, ...data }, cutShort(word, LONGEST_WORD), svg("title", {}, word));
}

function strongest(weights, columns) {
  const best = Array.from(weights).reduce((one, weight, s) => (weight > weights[one] ? s : one), 0);
  return `${columns[best]} ${(weights[best] ?? 0).toFixed(2)}`;
}
