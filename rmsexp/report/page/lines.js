// The lines of the charts, their labels and their axes. `form` and `hidden` of page.js have what the reader chose.

/** Exponential moving average over unevenly spaced points; `span` is its time constant, in units of x. */
function smoothed(x, y, span) {
  if (span === 0) return y;
  let mean = y[0];
  return y.map((value, i) => (mean += (i ? 1 - Math.exp((x[i - 1] - x[i]) / span) : 0) * (value - mean)));
}

function kindOf(curve) {
  if (curve.paper) return "paper";
  return "seed" in curve ? "seed" : "mean";
}

const HOVER = 400; // points at which a line is read, besides its own
const REACH = 6; // pixels from a point at which it is read: a line is not read beyond its end
const MARKED = 6; // a line has its marker at about so many of its points
const GLYPHS = { circle: "\u25cf", square: "\u25a0", "triangle-up": "\u25b2", "triangle-down": "\u25bc", diamond: "\u25c6", cross: "\u271a", x: "\u2716", "triangle-left": "\u25c0", "triangle-right": "\u25b6", pentagon: "\u2b1f", star: "\u2605", hexagon: "\u2b22", "diamond-tall": "\u2666", octagon: "\u2bc3" };
const LONGEST = 18; // characters of a label
const LABEL = 13; // pixels from a label at the end of a line to the next

/** Return the points of a line and, on it, further points at multiples of `step`, so that lines are read at the same x.
 * `own`: the index of each point among the line's own, or -1. */
function readable(x, y, step) {
  const found = { x: [], y: [], own: [] };
  const add = (at, value, index) => { found.x.push(at); found.y.push(value); found.own.push(index); };
  x.forEach((right, i) => {
    const left = x[i - 1];
    if (i) {
      for (let n = Math.floor(left / step) + 1; n * step < right; n++) {
        add(n * step, y[i - 1] + ((n * step - left) / (right - left)) * (y[i] - y[i - 1]), -1);
      }
    }
    add(right, y[i], i);
  });
  return found;
}

/** Return the indices of about MARKED points of a line that have its marker; `place`: the line's number. */
function marked(count, place) {
  if (count <= 2 * MARKED) return new Set(Array(count).keys());
  return new Set(Array.from({ length: MARKED }, (_, n) => Math.floor(((n + ((place % 4) + 0.5) / 4) * count) / MARKED)));
}

function traces(curves, look) {
  const longest = Math.max(...curves.map((curve) => curve.x.at(-1) ?? 0));
  const span = (Number(form.smooth.value) / 100) * longest;
  const excluded = { both: null, mean: "seed", seeds: "mean" }[form.show.value];
  return curves
    .map((curve, i) => ({ ...curve, id: `curve${i}`, kind: kindOf(curve), place: i, step: longest / HOVER }))
    .filter((curve) => curve.kind !== excluded && !hidden.has(curve.series))
    .map((curve) => ({ ...curve, y: smoothed(curve.x, curve.y, span) }))
    .flatMap((curve) => [
      lineOf(curve, look.get(curve.series)),
      ...(curve.diverged ? [crossOf(curve, look.get(curve.series))] : []),
      ...(curve.low && span === 0 ? [bandOf(curve, look.get(curve.series))] : []),
    ]);
}

/** Return a trace. Plotly updates the trace that has the same `uid`, so a curve's line and band need different ones. */
function trace(curve, kind, more) {
  return { type: "scatter", uid: curve.id + kind, meta: { series: curve.series, kind }, ...more };
}

function nameOf(curve, label) {
  return { seed: `${label} seed ${curve.seed}`, paper: `${label} (paper)`, mean: label }[curve.kind];
}

function lineOf(curve, { label, colour, dash, symbol }) {
  const isSeed = curve.kind === "seed";
  const isThin = isSeed && form.show.value === "both";
  const count = curve.x.length;
  const { x, y, own } = isThin ? { ...curve, own: curve.x.map((_, i) => i) } : readable(curve.x, curve.y, curve.step);
  const chosen = isThin && count > 1 ? new Set() : marked(count, curve.place);
  const size = own.map((index) => (chosen.has(index) ? 8 : 0));
  return trace(curve, curve.kind, {
    mode: isThin && count > 1 ? "lines" : "lines+markers", name: nameOf(curve, label), x, y,
    line: { color: colour, width: isSeed ? 1.3 : 2.5, dash: curve.dash ?? dash }, opacity: isThin ? 0.6 : 1,
    marker: { symbol, size, color: colour, opacity: 1, line: { width: 0 } },
    ...(isThin ? { hoverinfo: "skip" } : { hovertemplate: "%{y:.4~g}" }),
  });
}

function crossOf(curve, { colour }) {
  const end = { x: curve.x.slice(-1), y: curve.y.slice(-1) };
  return trace(curve, "diverged", { ...end, mode: "markers", marker: { symbol: "x", size: 9, color: colour }, hoverinfo: "skip" });
}

function bandOf(curve, { colour }) {
  const bounded = [...curve.x.keys()].filter((i) => curve.low[i] !== null); // where three or more seeds are in the mean
  const [x, low, high] = [curve.x, curve.low, curve.high].map((values) => bounded.map((i) => values[i]));
  const outline = { x: [...x, ...x.toReversed()], y: [...high, ...low.toReversed()] };
  const area = { mode: "none", fill: "toself", fillcolor: colour, opacity: 0.15 };
  return trace(curve, "band", { ...outline, ...area, hoverinfo: "skip" });
}

function scale(chart) {
  if (!chart.may_be_log) return "linear"; // such as BLEU, whose ratios mean nothing
  return form.y.value === "auto" ? (chart.log ? "log" : "linear") : form.y.value;
}

/** Return the range of the vertical axis; none if the reader has chosen another axis than the automatic one. */
function rangeOf(chart) {
  const isLog = scale(chart) === "log";
  return isLog === chart.log ? { range: chart.range.map((end) => (isLog ? Math.log10(end) : end)) } : {};
}

/** Return the labels at the ends of the shown means, from top to bottom at least LABEL pixels apart. */
function endLabels(chart, drawn, look, height) {
  const { range } = rangeOf(chart);
  const isLog = scale(chart) === "log";
  const means = drawn.filter((line) => line.meta.kind === "mean" && line.x.length);
  if (!range || means.length < 2 || LABEL * means.length > height) return [];
  const fraction = (y) => ((isLog ? Math.log10(y) : y) - range[0]) / (range[1] - range[0]);
  const ends = means
    .map((line) => ({ ...look.get(line.meta.series), y: Math.min(1, Math.max(0, fraction(line.y.at(-1)) || 0)) }))
    .sort((a, b) => a.y - b.y);
  const gap = LABEL / height;
  ends.forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + gap); });
  ends.toReversed().forEach((end, i, all) => { end.y = Math.min(end.y, i ? all[i - 1].y - gap : 1); });
  return ends.map(({ label, y, colour, symbol }) => ({
    xref: "paper", yref: "paper", x: 1.01, y, text: `<span style="color:${colour}">${GLYPHS[symbol]}</span> ${shortened(label)}`, showarrow: false, xanchor: "left", yanchor: "middle",
    font: { size: 11 },
  }));
}

/** Return the label of a line's end: without "impl=", and of at most LONGEST characters. */
function shortened(label) {
  const text = label.replace("impl=", "");
  return text.length <= LONGEST ? text : `${text.slice(0, LONGEST - 1)}\u2026`;
}

/** Return the width of the labels in pixels. */
function roomFor(look) {
  return 34 + 5.6 * Math.max(...[...look].filter(([series]) => !hidden.has(series)).map(([, { label }]) => shortened(label).length));
}

/** Return where the means that are drawn are furthest beyond the axis, like the `beyond` of a panel. */
function meansBeyond(chart, drawn) {
  return drawn.filter((line) => line.meta.kind === "mean").flatMap(({ x, y, meta }) =>
    [[Math.max(...y), true], [Math.min(...y), false]]
      .filter(([value, above]) => (above ? value > chart.range[1] : value < chart.range[0]))
      .map(([value, above]) => ({ series: meta.series, x: x[y.indexOf(value)], y: value, above })));
}

/** Return an arrow with the value where the curves of a norm are furthest beyond the axis. */
function arrows(chart, panel, drawn, look) {
  if (!rangeOf(chart).range) return [];
  const beyond = form.show.value === "mean" ? meansBeyond(chart, drawn) : panel.beyond;
  return beyond.filter(({ series }) => !hidden.has(series)).map(({ series, x, y, above }, i) => ({
    x, yref: "paper", y: above ? 1 : 0, yshift: (above ? -1 : 1) * LABEL * (i % 4), text: `<span style="color:${look.get(series).colour}">${above ? "\u2191" : "\u2193"}</span>${Number(y.toPrecision(3))}`,
    showarrow: false, xanchor: "left", yanchor: above ? "top" : "bottom", font: { size: 11 },
  }));
}

function layout(chart, panel, drawn, look, height) {
  const { color: text, borderTopColor: rule, backgroundColor: raised } = getComputedStyle(form);
  const axis = { gridcolor: rule, zerolinecolor: rule, linecolor: rule, automargin: true };
  const smoothing = Number(form.smooth.value) ? ", smoothed" : "";
  const labels = endLabels(chart, drawn, look, height - 60);
  return {
    xaxis: { ...axis, title: { text: panel.title } },
    yaxis: { ...axis, title: { text: chart.title + smoothing }, type: scale(chart), ...rangeOf(chart) },
    annotations: [...labels, ...arrows(chart, panel, drawn, look)], hoverdistance: REACH,
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: text, family: "system-ui, sans-serif" },
    margin: { l: 55, r: labels.length ? roomFor(look) : 12, t: 12, b: 48 }, showlegend: false, uirevision: form.x.value + form.y.value,
    hovermode: form.show.value === "seeds" ? "closest" : "x unified",
    hoverlabel: { bgcolor: raised, bordercolor: rule, font: { color: text }, namelength: -1 },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
  };
}
