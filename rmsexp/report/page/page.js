"use strict";
// Draws the charts of rmsexp/report/plots/chart.py with Plotly. The form's controls and the checkboxes of the norms hold
// the state of the view.

const form = document.getElementById("controls");
const settings = [...document.querySelectorAll("section.setting")];
const hidden = new Set(); // series that are switched off, in all settings
const dark = matchMedia("(prefers-color-scheme: dark)");
const parsed = new Map(); // panels by section, parsed when the section is first shown

// ---- charts

/** Draw the panels of a section. Those of a setting are against steps or time, without the hidden series. */
function draw(section) {
  if (!parsed.has(section)) parsed.set(section, JSON.parse(section.querySelector("script").textContent));
  const isSetting = section.classList.contains("setting");
  const isChosen = ({ x }) => !isSetting || (x.title === "step") === (form.x.value === "step");
  const isShown = ({ series }) => !isSetting || !hidden.has(series);
  const panels = parsed.get(section).filter(isChosen);
  const holder = section.querySelector(".charts");
  while (holder.childElementCount < panels.length) holder.append(figureElement());
  panels.forEach((panel, i) => {
    const [title, plot, note] = holder.children[i].children;
    title.textContent = panel.title;
    note.textContent = panel.note;
    plot.style.height = `${100 * panel.height + 40}px`;
    const axes = `${panel.y.title} against ${panel.x.title}`;
    plot.setAttribute("aria-label", `${panel.title} ${axes}; the tables have the numbers`);
    const marks = panel.marks.filter(isShown);
    const lines = marks.filter(({ kind }) => kind === "line");
    const data = marks.flatMap((mark) => traces(mark, lines.indexOf(mark), lines.length));
    Plotly.newPlot(plot, data, layout(panel), { responsive: true, displayModeBar: false });
  });
}

function figureElement() {
  const figure = document.createElement("figure");
  const plot = Object.assign(document.createElement("div"), { className: "plot" });
  plot.setAttribute("role", "img");
  figure.append(document.createElement("h4"), plot, document.createElement("figcaption"));
  return figure;
}

/** Escape a text for Plotly, which renders some HTML tags. */
function shown(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll("\n", "<br>");
}

/** Return the traces of marks; lines that are drawn first are thicker, and their markers are elsewhere. */
function traces(mark, place, count) {
  const { x, y, low, high, look: { symbol, dash: dashes } } = mark;
  const color = dark.matches ? mark.look.on_dark : mark.look.colour;
  const dash = Array.isArray(dashes) ? dashes[1].map((length) => `${2 * length}px`).join() : "solid";
  const shared = { type: "scatter", x, y, name: shown(mark.label), hovertemplate: "%{x:.4~g}, %{y:.4~g}" };
  const points = (more) => ({
    ...shared, mode: "markers", marker: { symbol, size: 9, color, line: { width: 0 }, ...more },
  });
  const line = (width, mode) => ({ mode, line: { color, width, dash } });
  const silent = { hoverinfo: "skip", hovertemplate: null };
  switch (mark.kind) {
    case "line":
      return [...band(mark, color), { ...points({ size: sizes(x.length, (place + 0.5) / count) }), ...line(5 - (3 * (place + 1)) / count, "lines+markers") }];
    case "seed":
      return [{ ...points({ size: 7 }), ...line(1.2, x.length > 1 ? "lines" : "markers"), opacity: 0.55, ...silent }];
    case "points": return [points({ size: 7, opacity: 0.6 })];
    case "ring": return [points({ symbol: "circle-open", size: 16, line: { width: 2 } })];
    case "cross": return [points({ symbol: "x" })];
    case "edge": return [{ ...points({ size: 12 }), ...silent, cliponaxis: false }];
    default: { // interval, hollow
      const [array, arrayminus] = [high.map((end, i) => end - x[i]), low.map((end, i) => x[i] - end)];
      const ends = low.length ? { error_x: { type: "data", symmetric: false, color, array, arrayminus } } : {};
      const open = { symbol: `${symbol.replace("-open", "")}-open`, line: { width: 1.5 } };
      return [{ ...points(mark.kind === "hollow" ? open : {}), ...ends, hovertemplate: "%{x:.4~g}" }];
    }
  }
}

/** Return the sizes of the markers of a line with so many points: about six are visible. */
function sizes(count, shift) {
  const spacing = count <= 12 ? 1 : Math.ceil(count / 6);
  return Array.from({ length: count }, (_, i) => (i % spacing === Math.floor(spacing * shift) ? 8 : 0));
}

function band({ x, low, high }, color) {
  if (!low.length) return []; // a single seed
  const outline = { x: [...x, ...x.toReversed()], y: [...high, ...low.toReversed()] };
  const area = { mode: "none", fill: "toself", fillcolor: color, opacity: 0.15, hoverinfo: "skip" };
  return [{ type: "scatter", ...outline, ...area }];
}

function layout(panel) {
  const { color, borderTopColor: rule, backgroundColor: raised } = getComputedStyle(form);
  const ground = getComputedStyle(document.body).backgroundColor;
  const axis = ({ title, range, log, ticks, labels }) => ({
    gridcolor: rule, linecolor: rule, zeroline: false, automargin: true,
    title: { text: shown(title) }, type: log ? "log" : "linear",
    ...(range ? { range: log ? range.map(Math.log10) : range } : {}),
    ...(ticks ? { tickvals: ticks, ticktext: (labels.length ? labels.map(shown) : ticks.map(String)) } : {}),
  });
  const zero = { x0: panel.line, x1: panel.line, yref: "paper", y0: 0, y1: 1, line: { color, width: 1 } };
  const shades = panel.shades.map(({ low: x0, high: x1, bottom: y0, top: y1 }) => (
    { type: "rect", x0, x1, y0, y1, line: { width: 0 }, fillcolor: color, opacity: 0.15, layer: "below" }
  ));
  const left = { xref: "paper", x: 0, xanchor: "left", yanchor: "top", align: "left", showarrow: false, borderpad: 0, bgcolor: ground };
  return {
    xaxis: axis(panel.x), yaxis: axis(panel.y),
    shapes: panel.line === null ? shades : [...shades, { type: "line", layer: "below", ...zero }],
    annotations: panel.texts.map(({ y, lines }) => ({ ...left, y, text: shown(lines.join("\n")), font: { size: 12 } })),
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color, family: "system-ui, sans-serif" },
    margin: { l: panel.y.title ? 62 : 12, r: 14, t: 8, b: 48 }, showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: raised, bordercolor: rule, font: { color }, namelength: -1 },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
  };
}

// ---- the page

/** Show the chosen setting alone. */
function update() {
  for (const section of settings) {
    section.hidden = section.dataset.task !== form.task.value || section.dataset.name !== form.setting.value;
    if (!section.hidden) {
      for (const box of section.querySelectorAll(".norms input")) box.checked = !hidden.has(box.value);
      draw(section);
    } else {
      section.querySelectorAll(".plot").forEach((plot) => Plotly.purge(plot));
      section.querySelector(".charts").replaceChildren();
    }
  }
}

function fillSettings() {
  const own = settings.filter((section) => section.dataset.task === form.task.value);
  form.setting.replaceChildren(...own.map((section) => new Option(section.dataset.name)));
}

function drawAll() {
  document.querySelectorAll("section.figure").forEach(draw);
  update();
}

form.addEventListener("input", ({ target }) => {
  if (target === form.task) fillSettings();
  update();
});
document.querySelector("main").addEventListener("change", ({ target }) => {
  if (!target.closest(".norms")) return;
  if (target.checked) hidden.delete(target.value);
  else hidden.add(target.value);
  update();
});
/** Run Plotly, which the page holds as gzip in base64, and draw. */
async function begin() {
  const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), (byte) => byte.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = Object.assign(document.createElement("script"), { text: await new Response(unpacked).text() });
  document.head.append(script);
  dark.addEventListener("change", drawAll);
  form.hidden = !settings.length;
  document.getElementById("needs-scripts").remove();
  fillSettings();
  drawAll();
}

/** Show the rows of the first table that compare with the chosen norm. */
function showAgainst({ value }) {
  for (const row of document.querySelectorAll(".answer tbody tr")) row.hidden = row.cells[1].textContent !== value;
}

const against = document.querySelector(".answer select");
against?.addEventListener("input", () => showAgainst(against));
if (against) showAgainst(against);
const tasks = new Set(settings.map((section) => section.dataset.task));
form.task.replaceChildren(...[...tasks].map((task) => new Option(task)));
begin();
