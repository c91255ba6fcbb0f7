// The form's controls and the norms' checkboxes hold the state of the view; the URL's hash is a copy of this state.

const form = document.getElementById("controls");
const sections = [...document.querySelectorAll("section.setting")];
const contents = new Map(); // charts and series by section, parsed when the section is first shown
const hidden = new Set(); // series that are switched off, in all settings
let ground = ""; // the background with which the figures of campaigns were drawn

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

// ---- charts

function drawCharts(section) {
  if (!contents.has(section)) contents.set(section, JSON.parse(section.querySelector("script").textContent));
  const { series, charts } = contents.get(section);
  const swatches = section.querySelectorAll(".norms svg");
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // plotly renders some HTML tags
  const look = new Map(
    series.map(({ series: name, label, dash, symbol }, i) => [
      name, { label: escaped(label), dash, symbol, colour: getComputedStyle(swatches[i]).color },
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
    Plotly.react(plot, drawn, layout(chart, panel, drawn, look, plot.clientHeight), { responsive: true, displayModeBar: false });
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

/** Return a panel's mean of a series; undefined if it has none. */
function meanOf(panel, name) {
  return panel.curves.find((curve) => curve.series === name && kindOf(curve) === "mean");
}

/** Return the number of seeds that a panel's lines of a series show: the seeds drawn, or those in the mean. */
function seedsIn(panel, name) {
  if (form.show.value !== "seeds") return meanOf(panel, name)?.averaged ?? 0;
  return panel.curves.filter((curve) => curve.series === name && kindOf(curve) === "seed").length;
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
  const visible = counted.filter(({ name }) => !chart.source && !hidden.has(name));
  const fewer = visible.filter(({ name, shown }) => seedsIn(panel, name) < shown);
  const listed = fewer.map(({ name, label }) => `${label} ${seedsIn(panel, name)}`).join(", ");
  const means = form.show.value === "seeds" ? [] : visible.map(({ name, label }) => ({ label, mean: meanOf(panel, name) }));
  const ending = means.filter(({ mean }) => mean?.at_end < mean?.averaged).map(({ label, mean }) => `${label} ${mean.at_end}`).join(", ");
  return [listed && `Number of seeds here: ${listed}.`, ending && `Seeds at the end of the mean: ${ending}.`, omission(chart, drawn)].filter(Boolean).join(" ");
}

function omission(chart, drawn) {
  const omitted = scale(chart) === "log" ? drawn.flatMap((curve) => curve.y).filter((value) => value <= 0).length : 0;
  if (form.y.value === "log" && !chart.may_be_log) return "Not drawn on a logarithmic axis: ratios of these values mean nothing.";
  return omitted ? `${omitted} values of zero or below cannot be shown on a logarithmic axis.` : "";
}

/** Explain the kinds of lines that the charts show. */
function reading(charts) {
  const curves = charts.flatMap((chart) => chart.panels[form.x.value]?.curves ?? []);
  if (!curves.length) return "";
  const smoothing = Number(form.smooth.value);
  const show = form.show.value;
  const parts = { both: ["thin: one seed", "thick: mean over the seeds counted above"], mean: ["mean over the seeds counted above"], seeds: ["one line per seed"] }[show];
  if (curves.some((curve) => curve.at_end < curve.averaged) && show !== "seeds") parts.push("a mean ends where fewer than half of the seeds have values");
  if (show !== "seeds") parts.push("pointing at a line reads it, between points interpolated");
  if (curves.some((curve) => curve.low) && show !== "seeds" && !smoothing) parts.push("band: 95 % t-interval of the mean");
  if (curves.some((curve) => curve.time_excluded)) parts.push("short dashes: time excluded (contended)");
  if (curves.some((curve) => curve.diverged) && show !== "mean") parts.push("x: diverged");
  return `Curves: ${parts.join("; ")}.`;
}

// ---- the page

function update() {
  document.documentElement.dataset.theme = form.theme.value;
  const colours = getComputedStyle(form);
  if (colours.backgroundColor !== ground) drawVerdicts(colours); // nothing else changes these figures
  ground = colours.backgroundColor;
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

const NUMBER = /^[+-]?\d+(\.\d+)?(e[+-]?\d+)?(?![\w-])/; // not the year of a date, nor the digits of a commit

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

/** Compare by the numbers at the start of both cells, such as "1,178". Cells without a number, such as dates and
 * commits, come last, in both directions; two of them are compared as text. */
function compare(a, b, direction) {
  const [first, second] = [a, b].map((text) => Number(NUMBER.exec(text.replace(/(?<=\d),(?=\d{3}\b)/g, ""))?.[0] ?? NaN));
  if (Number.isNaN(first) !== Number.isNaN(second)) return Number.isNaN(first) ? 1 : -1;
  return direction * (Number.isNaN(first) ? a.localeCompare(b, undefined, { numeric: true }) : first - second);
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
document.addEventListener("click", ({ target }) => {
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
