// What moves on the page: the x axis, smoothing, the values under the pointer, which runs are shown, light and dark,
// the samples. The charts are Bokeh's: a figure is found by its scalar's name, a curve by "run:<number>".
"use strict";

const page = (() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);
  let figures = [];  // {plot, linear, curves: [{run, source, color, smooth, renderers}], values: the line above it}
  let axis = "step", unit = {text: "", seconds: 1};
  const hidden = new Set();

  // ---- numbers ----

  const scaled = (x) => {
    const units = ["", "k", "M", "B", "T"];
    let power = 0;
    for (; Math.abs(x) >= 1000 && power < 4; ++power) x /= 1000;
    return `${+x.toPrecision(4)}${units[power]}`;
  };
  const number_text = (x) => {
    if (x !== 0 && Math.abs(x) < 0.001) return x.toExponential().replace(/(\.\d{3})\d+/, "$1").replace("-", "−");
    return Math.abs(x) >= 10000 ? scaled(x) : String(+x.toPrecision(4));
  };
  const value_text = (x) => (Math.abs(x) < 0.001 || Math.abs(x) >= 1000 ? number_text(x) : x.toPrecision(4));
  const x_text = (x) => (axis === "seconds" ? `${+x.toPrecision(4)} ${unit.text}` : scaled(x));

  // ---- the curves ----

  // An exponential mean over about `tau` steps, whose weights add up to 1 from the first point on.
  function smoothed(step, value, tau) {
    if (tau === 0) return Float64Array.from(value);
    let sum = 0, weight = 0;
    return Float64Array.from(value, (v, i) => {
      if (Number.isNaN(v)) return NaN;
      const keep = Math.exp(-(i > 0 ? step[i] - step[i - 1] : 1) / tau);
      sum = sum * keep + v * (1 - keep);
      weight = weight * keep + (1 - keep);
      return weight > 0 ? sum / weight : v;
    });
  }

  const ends = (column, at) => figures.flatMap((f) => f.curves.map((c) => c.source.data[column].at(at) ?? 0));
  const longest = (column) => Math.max(0, ...ends(column, -1));

  function smoothing_steps() {
    return one("#smoothing").value ** 2 * longest("step") / 4;
  }

  function update_curves() {
    const tau = smoothing_steps(), seconds = longest("seconds");
    one("#smoothing + output").textContent = tau ? `${scaled(+tau.toPrecision(2))} steps` : "none";
    unit = [["s", 1], ["min", 60], ["h", 3600], ["d", 86400]].filter(([, s]) => s === 1 || seconds > 5 * s)
      .map(([text, s]) => ({text, seconds: s})).at(-1);
    const scale = axis === "seconds" ? unit.seconds : 1;
    for (const {curves} of figures)
      for (const {source, smooth} of curves) {
        const {step, value, mean} = source.data;
        source.data = {...source.data, x: Float64Array.from(source.data[axis], (x) => x / scale),
          smooth: smooth ? smoothed(step, tau ? mean : value, tau) : value};
      }
    read_at(null);
  }

  // All charts share one range.
  function show_all_of_x() {
    if (!figures.length) return;
    const start = Math.min(...ends("x", 0)), end = longest("x"), margin = (end - start || 1) * 0.02;
    const range = {start: start - margin, end: end + margin};
    figures[0].plot.x_range.setv({...range, reset_start: range.start, reset_end: range.end});
  }

  function choose_axis(name) {
    axis = name;
    for (const button of all("[data-axis]")) button.setAttribute("aria-pressed", button.dataset.axis === axis);
    update_curves();
    show_all_of_x();
  }

  // Only of what is a loss or a norm: these are positive, and fall over orders of magnitude.
  function choose_scale(logarithmic) {
    one("#log").setAttribute("aria-pressed", logarithmic);
    for (const {plot, linear} of figures.filter((f) => f.values.closest("[data-log]"))) {
      const log = {scale: new Bokeh.Models.LogScale(), ticker: new Bokeh.Models.LogTicker({desired_num_ticks: 5})};
      const {scale, ticker} = logarithmic ? log : linear;
      plot.y_scale = scale;
      for (const part of [plot.left[0], ...plot.center.filter((grid) => grid.dimension === 1)]) part.ticker = ticker;
    }
  }

  function show_run(run, shown) {
    if (shown) hidden.delete(run);
    else hidden.add(run);
    for (const {curves} of figures)
      for (const curve of curves) for (const r of curve.renderers) r.visible = !hidden.has(curve.run);
    read_at(null);
  }

  // ---- the values above each chart: at the pointer, else the last ones ----

  function nearest(x, column) {
    let low = 0, high = column.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (column[middle] < x) low = middle;
      else high = middle;
    }
    return x - column[low] < column[high] - x ? low : high;
  }

  function read_at(x) {
    for (const {curves, values} of figures) {
      values.replaceChildren(...curves.filter((c) => !hidden.has(c.run)).map(({source, color}) => {
        const data = source.data, at = x === null ? data.x.length - 1 : nearest(x, data.x);
        const span = document.createElement("span");
        span.className = "run";
        span.style.setProperty("--color", color);
        span.textContent = value_text(data.smooth[at]);
        span.title = `step ${data.step[at]}`;
        return span;
      }), x === null ? "" : `at ${x_text(x)}`);
    }
  }

  // ---- light and dark ----

  function dress() {
    const style = getComputedStyle(document.body), color = (name) => style.getPropertyValue(name).trim();
    for (const {plot} of figures) {
      for (const axis of [...plot.below, ...plot.left]) axis.major_label_text_color = color("--faint");
      for (const grid of plot.center) if ("grid_line_color" in grid) grid.grid_line_color = color("--line");
    }
  }

  function toggle_theme() {
    const root = document.documentElement;
    const now = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    dress();
  }

  // ---- samples: of the chosen step, or a run's newest one before it ----

  function show_samples() {
    const slider = one("#sample-step"), step = JSON.parse(slider.dataset.steps)[slider.value];
    one("output", slider.parentNode).textContent = step;
    for (const card of all(".sample")) {
      const texts = all("pre", card), chosen = texts.filter((t) => +t.dataset.step <= step).at(-1);
      for (const text of texts) text.hidden = text !== chosen;
      one("small", card).textContent = chosen ? `step ${chosen.dataset.step}` : "no sample yet";
    }
  }

  // ---- the start ----

  function find_figures() {
    figures = (one(".chart") ? Bokeh.documents[0].roots() : []).map((plot) => {
      const curves = plot.renderers.filter((r) => r.name.startsWith("run:")).map((main) => {
        const run = +main.name.slice(4), source = main.data_source;
        return {run, source, color: main.glyph.line_color.value, smooth: source.name === "smooth",
          renderers: plot.renderers.filter((r) => r.name.endsWith(`:${run}`))};
      });
      return {plot, curves, linear: {scale: plot.y_scale, ticker: plot.left[0].ticker},
        values: one(`[data-scalar="${CSS.escape(plot.name)}"] .values`)};
    });
    // A finger scrolls the page; zooming is for the tools then.
    if (matchMedia("(pointer: coarse)").matches) for (const {plot} of figures) plot.toolbar.active_drag = null;
  }

  function start() {
    if (one(".chart") && !window.Bokeh?.documents[0]?.is_idle) return void setTimeout(start, 20);
    find_figures();
    dress();
    choose_axis("step");
    one("#smoothing").addEventListener("input", update_curves);
    one("#theme").addEventListener("click", toggle_theme);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);
    for (const button of all("[data-axis]")) button.addEventListener("click", () => choose_axis(button.dataset.axis));
    one("#log").addEventListener("click", (e) => choose_scale(e.target.getAttribute("aria-pressed") !== "true"));
    for (const chip of all(".chip"))
      chip.addEventListener("click", () => {
        const shown = chip.getAttribute("aria-pressed") !== "true";
        chip.setAttribute("aria-pressed", shown);
        show_run(+chip.dataset.run, shown);
      });
    document.body.dataset.ready = "yes";
  }

  document.addEventListener("DOMContentLoaded", () => {
    if (one("#sample-step")) {
      one("#sample-step").addEventListener("input", show_samples);
      show_samples();
    }
    start();
  });
  return {x_text, number_text, read_at};  // for the callbacks in the charts
})();
