"use strict";
// The figures of campaigns. Their panels have the same marks as those that matplotlib draws.

const UNIT = 46; // pixels per unit of a y axis that counts lines of text

/** Return the traces of one kind of marks in a norm's look. `text`: the colour of text. */
function markTraces(entry, { colour, symbol, dash }, text) {
  const shared = { type: "scatter", x: entry.x, y: entry.y, name: entry.label, hovertemplate: "%{x:.4~g}, %{y:.4~g}" };
  const marker = (symbol, size, more) => ({ mode: "markers", marker: { symbol, size, color: colour, ...more } });
  switch (entry.kind) {
    case "points": return [{ ...shared, ...marker(symbol, 7, { opacity: 0.6 }) }];
    case "chosen": return [{ ...shared, ...marker("circle-open", 16, { line: { width: 2 } }) }];
    case "cross": return [{ ...shared, ...marker("x", 9), hovertemplate: "diverged at %{x}" }];
    case "left": return [{ ...shared, ...marker("triangle-left", 12), hoverinfo: "skip", hovertemplate: null, cliponaxis: false }];
    case "right": return [{ ...shared, ...marker("triangle-right", 12), hoverinfo: "skip", hovertemplate: null, cliponaxis: false }];
    case "paper": return [{ ...shared, ...marker("diamond-open", 9, { color: text, line: { width: 1.5 } }), hovertemplate: "%{x:.3~g}" }];
    case "interval": {
      const ends = {
        type: "data", symmetric: false, color: colour,
        array: entry.x.map((x, i) => entry.high[i] - x), arrayminus: entry.x.map((x, i) => x - entry.low[i]),
      };
      return [{ ...shared, ...marker(symbol, 9), error_x: ends, hovertemplate: "%{x:+.3~g}" }];
    }
    default: return [...band(entry, colour), { ...shared, ...marker(symbol, sizes(entry.x.length), { opacity: 1 }), mode: "lines+markers", line: { color: colour, width: 2.5, dash } }];
  }
}

/** Return the sizes of the markers of a line with so many points: a few are visible. */
function sizes(count) {
  const chosen = marked(count, 0);
  return Array.from({ length: count }, (_, i) => (chosen.has(i) ? 8 : 0));
}

function band(entry, colour) {
  if (!entry.low.length) return [];
  const outline = { x: [...entry.x, ...entry.x.toReversed()], y: [...entry.high, ...entry.low.toReversed()] };
  return [{ type: "scatter", ...outline, mode: "none", fill: "toself", fillcolor: colour, opacity: 0.15, hoverinfo: "skip" }];
}

function panelLayout(panel, style) {
  const { color: text, borderTopColor: rule, backgroundColor: raised } = style;
  const axis = { gridcolor: rule, linecolor: rule, zeroline: false, automargin: true };
  const logarithmic = { type: "log", tickvals: panel.ticks, ticktext: panel.ticks.map(String), range: panel.x_range.map(Math.log10) };
  const height = panel.y_title ? 336 : UNIT * (panel.y_range[1] - panel.y_range[0]) + 60;
  return {
    height, xaxis: { ...axis, title: { text: panel.x_title }, ...(panel.ticks.length ? logarithmic : { range: panel.x_range }) },
    yaxis: { ...axis, title: { text: panel.y_title }, range: panel.y_range, visible: Boolean(panel.y_title) },
    shapes: [
      ...panel.bands.map((shaded) => ({
        type: "rect", x0: shaded.low, x1: shaded.high, y0: shaded.bottom, y1: shaded.top, line: { width: 0 },
        fillcolor: text, opacity: 0.15, layer: "below",
      })),
      ...(panel.zero ? [{ type: "line", x0: 0, x1: 0, yref: "paper", y0: 0, y1: 1, line: { color: text, width: 1 }, layer: "below" }] : []),
    ],
    annotations: panel.texts.map((entry) => ({
      xref: "paper", x: 0, y: entry.y, text: entry.text, showarrow: false, xanchor: "left", yanchor: "top", align: "left", borderpad: 0,
      font: { size: 12 },
    })),
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: text, family: "system-ui, sans-serif" },
    margin: { l: panel.y_title ? 62 : 12, r: 14, t: 8, b: 48 }, showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: raised, bordercolor: rule, font: { color: text }, namelength: -1 },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
  };
}

/** Draw all panels; `style` has the computed colours of the page. */
function drawVerdicts(style) {
  for (const figure of document.querySelectorAll(".figure")) {
    const swatches = [...figure.querySelectorAll("[data-norm]")];
    const looks = new Map(swatches.map((swatch) => [swatch.dataset.norm, { colour: getComputedStyle(swatch).color, ...swatch.dataset }]));
    for (const holder of figure.querySelectorAll(".panel")) {
      const panel = JSON.parse(holder.nextElementSibling.textContent);
      const traces = panel.marks.flatMap((entry) => markTraces(entry, looks.get(entry.norm), style.color));
      Plotly.react(holder, traces, panelLayout(panel, style), { responsive: true, displayModeBar: false });
    }
  }
}
