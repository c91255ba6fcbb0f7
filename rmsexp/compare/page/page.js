// The form's controls and the norms' checkboxes hold the state of the view; the URL's hash is a copy of this state.

const form = document.getElementById("controls");
const sections = [...document.querySelectorAll("section.setting")];
const contents = new Map(); // charts and series by section, parsed when the section is first shown
const hidden = new Set(); // series that are switched off, in all settings

// ---- state and hash

function fillOptions(select, values) {
  const before = select.value;
  select.replaceChildren(...values.map((value) => new Option(value, value)));
  if (values.includes(before)) select.value = before;
}

function sectionsOfTask() {
  return sections.filter((section) => section.dataset.task === form.task.value);
}

function readHash() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  form.reset();
  choose(form.task, parameters.get("task"));
  fillOptions(form.setting, sectionsOfTask().map((section) => section.dataset.name));
  for (const name of ["setting", "x", "y", "show", "smooth", "theme"]) choose(form[name], parameters.get(name));
  hidden.clear();
  for (const series of parameters.getAll("hide")) hidden.add(series);
}

/** Set a control to a value from the hash; a missing or invalid value changes nothing. */
function choose(control, value) {
  if (value === null) return;
  const isKnown = control.type === "range" ? value >= 0 : [...(control.options ?? control)].some((option) => option.value === value);
  if (isKnown) control.value = value;
}

function writeHash() {
  const parameters = new URLSearchParams(new FormData(form));
  for (const series of hidden) parameters.append("hide", series);
  history.replaceState(null, "", "#" + parameters);
}

// ---- curves

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

function traces(curves, look) {
  const longest = Math.max(...curves.map((curve) => curve.x.at(-1) ?? 0));
  const span = (Number(form.smooth.value) / 100) * longest;
  const excluded = { both: null, mean: "seed", seeds: "mean" }[form.show.value];
  return curves
    .map((curve, i) => ({ ...curve, id: `curve${i}`, kind: kindOf(curve) }))
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

function lineOf(curve, { label, colour, dash }) {
  const isSeed = curve.kind === "seed";
  const isThin = isSeed && form.show.value === "both";
  return trace(curve, curve.kind, {
    mode: curve.x.length === 1 ? "markers" : "lines", name: nameOf(curve, label), x: curve.x, y: curve.y,
    line: { color: colour, width: isSeed ? 1.2 : 2.5, dash: curve.dash ?? dash }, opacity: isThin ? 0.5 : 1,
    ...(isThin ? { hoverinfo: "skip" } : { hovertemplate: "%{y:.4~g}" }),
  });
}

function crossOf(curve, { colour }) {
  const end = { x: curve.x.slice(-1), y: curve.y.slice(-1) };
  return trace(curve, "diverged", { ...end, mode: "markers", marker: { symbol: "x", size: 9, color: colour }, hoverinfo: "skip" });
}

function bandOf(curve, { colour }) {
  const outline = { x: [...curve.x, ...curve.x.toReversed()], y: [...curve.high, ...curve.low.toReversed()] };
  const area = { mode: "none", fill: "toself", fillcolor: colour, opacity: 0.15 };
  return trace(curve, "band", { ...outline, ...area, hoverinfo: "skip" });
}

function scale(chart) {
  return form.y.value === "auto" ? (chart.log ? "log" : "linear") : form.y.value;
}

function layout(chart, panel) {
  const { color: text, borderTopColor: rule, backgroundColor: raised } = getComputedStyle(form);
  const axis = { gridcolor: rule, zerolinecolor: rule, linecolor: rule, automargin: true };
  const smoothing = Number(form.smooth.value) ? ", smoothed" : "";
  return {
    xaxis: { ...axis, title: { text: panel.title } },
    yaxis: { ...axis, title: { text: chart.title + smoothing }, type: scale(chart) },
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: text, family: "system-ui, sans-serif" },
    margin: { l: 55, r: 12, t: 12, b: 48 }, showlegend: false, uirevision: form.x.value + form.y.value,
    hovermode: form.show.value === "seeds" ? "closest" : "x unified",
    hoverlabel: { bgcolor: raised, bordercolor: rule, font: { color: text }, namelength: -1 },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
  };
}

function drawCharts(section) {
  if (!contents.has(section)) contents.set(section, JSON.parse(section.querySelector("script").textContent));
  const { series, charts } = contents.get(section);
  const swatches = section.querySelectorAll(".norms svg");
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // plotly renders some HTML tags
  const look = new Map(
    series.map(({ series: name, label, dash }, i) => [
      name, { label: escaped(label), dash, colour: getComputedStyle(swatches[i]).color },
    ]),
  );
  const holder = section.querySelector(".charts");
  if (!holder.childElementCount) holder.append(...charts.map(() => chartElement()));
  const panels = charts.filter((chart) => !chart.source).map((chart) => chart.panels[form.x.value]);
  const counted = countSeeds(section, series, panels);
  charts.forEach((chart, i) => {
    const panel = chart.panels[form.x.value];
    holder.children[i].hidden = !panel; // some figures of the paper have only one of the axes
    if (!panel) return;
    const drawn = traces(panel.curves, look);
    const [plot, caption] = holder.children[i].children;
    plot.setAttribute("aria-label", `${chart.source} ${chart.title} against ${panel.title}; the tables below have the numbers`);
    caption.textContent = [chart.source, remark(chart, panel, drawn, counted)].join(" ");
    Plotly.react(plot, drawn, layout(chart, panel), { responsive: true, displayModeBar: false });
  });
  section.querySelector(".reading").textContent = reading(charts);
}

function chartElement() {
  const figure = document.createElement("figure");
  const plot = Object.assign(document.createElement("div"), { className: "plot" });
  plot.setAttribute("role", "img");
  figure.append(plot, document.createElement("figcaption"));
  return figure;
}

/** Return the number of seeds that a panel's lines of a series show: the seeds drawn, or those in the mean. */
function seedsIn(panel, name) {
  const curves = panel.curves.filter((curve) => curve.series === name);
  if (form.show.value === "seeds") return curves.filter((curve) => kindOf(curve) === "seed").length;
  return curves.find((curve) => kindOf(curve) === "mean")?.averaged ?? 0;
}

/** Write into the legend how many seeds each norm's lines show, at most; return the number, name and label of each. */
function countSeeds(section, series, panels) {
  const texts = section.querySelectorAll(".norms .seeds");
  return series.map(({ series: name, label, seeds }, i) => {
    const shown = Math.max(0, ...panels.map((panel) => seedsIn(panel, name)));
    const all = `${seeds} seed${seeds > 1 ? "s" : ""}`;
    if (seeds) texts[i].textContent = shown === seeds ? all : `${shown} of ${all}`;
    return { name, label, shown };
  });
}

/** Explain why a chart shows fewer curves, seeds or values than expected. `counted`: the seeds in the legend. */
function remark(chart, panel, drawn, counted) {
  if (!panel.curves.length) return "Nothing recorded yet.";
  if (!drawn.length) return "No norm is selected.";
  const fewer = counted.filter(({ name, shown }) => !chart.source && !hidden.has(name) && seedsIn(panel, name) < shown);
  const listed = fewer.map(({ name, label }) => `${label} ${seedsIn(panel, name)}`).join(", ");
  return [listed && `Number of seeds here: ${listed}.`, omission(chart, drawn)].filter(Boolean).join(" ");
}

function omission(chart, drawn) {
  const omitted = scale(chart) === "log" ? drawn.flatMap((curve) => curve.y).filter((value) => value <= 0).length : 0;
  return omitted ? `${omitted} values of zero or below cannot be shown on a logarithmic axis.` : "";
}

/** Explain the kinds of lines that the charts show. */
function reading(charts) {
  const curves = charts.flatMap((chart) => chart.panels[form.x.value]?.curves ?? []);
  const smoothing = Number(form.smooth.value);
  const show = form.show.value;
  const parts = { both: ["thin: one seed", "thick: mean over the seeds counted above"], mean: ["mean over the seeds counted above"], seeds: ["one line per seed"] }[show];
  if (curves.some((curve) => curve.low) && show !== "seeds" && !smoothing) parts.push("band: 95 % t-interval of the mean");
  if (curves.some((curve) => curve.time_excluded)) parts.push("short dashes: time excluded from savings (contended, mixed or unknown)");
  if (curves.some((curve) => curve.diverged) && show !== "mean") parts.push("x: diverged");
  return `Curves: ${parts.join("; ")}.`;
}

// ---- the page

function update() {
  document.documentElement.dataset.theme = form.theme.value;
  drawVerdicts(getComputedStyle(form));
  if (!sections.length) return;
  const share = Number(form.smooth.value);
  document.getElementById("smoothing").textContent = share ? `Smoothing: ${share} % of the axis` : "Smoothing: none";
  const current = sectionsOfTask().find((section) => section.dataset.name === form.setting.value);
  for (const section of sections) {
    if (section === current) continue;
    section.hidden = true;
    section.querySelectorAll(".plot").forEach((plot) => Plotly.purge(plot));
    section.querySelector(".charts").replaceChildren();
  }
  current.hidden = false;
  for (const box of current.querySelectorAll(".norms input")) box.checked = !hidden.has(box.value);
  drawCharts(current);
}

function sort(button) {
  const header = button.closest("th");
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  for (const other of header.parentElement.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const body = header.closest("table").tBodies[0];
  const text = (row) => row.cells[header.cellIndex].textContent;
  const rows = [...body.rows].sort((a, b) => compare(text(a), text(b), ascending ? 1 : -1));
  body.append(...rows);
}

/** Compare by the numbers at the start of both cells. Cells without a number come last, in both directions; two of them
 * are compared as text. */
function compare(a, b, direction) {
  const [first, second] = [parseFloat(a), parseFloat(b)];
  if (Number.isNaN(first) !== Number.isNaN(second)) return Number.isNaN(first) ? 1 : -1;
  return direction * (Number.isNaN(first) ? a.localeCompare(b) : first - second);
}

form.addEventListener("input", (event) => {
  if (event.target === form.task) fillOptions(form.setting, sectionsOfTask().map((section) => section.dataset.name));
  writeHash();
  update();
});
document.querySelector("main").addEventListener("change", ({ target }) => {
  if (!target.closest(".norms")) return;
  if (target.checked) hidden.delete(target.value);
  else hidden.add(target.value);
  writeHash();
  update();
});
document.querySelector("main").addEventListener("click", ({ target }) => {
  if (target.closest("thead button")) sort(target);
});
addEventListener("hashchange", () => {
  readHash();
  update();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);

form.addEventListener("submit", (event) => event.preventDefault());
fillOptions(form.task, [...new Set(sections.map((section) => section.dataset.task))]);
form.hidden = !sections.length;
document.getElementById("needs-scripts").remove();
readHash();
update();
