// Charts over time, by uPlot: the series come in one request, what happens now from the event stream. A part drawn with
// the mouse is zoomed into, a double click leads out; every chart has a table of the same numbers.
"use strict";
(function () {
  const place = document.getElementById("charts");
  if (!place || !window.uPlot) return;
  const asked = JSON.parse(place.dataset.charts);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const REFETCH_MS = 60000, HEIGHT = 172, ROWS_MAX = 60;
  const span = asked.hours * 3600, step = Math.max(5, Math.ceil(span / 360));
  const made = [];
  const WORDS = {
    offered_rps: "offered", completed_rps: "served", dropped_rps: "dropped", latency_ms_p50: "p50", latency_ms_p99: "p99", slo_attainment: "within SLO",
    usd_per_h: "$/h", energy_j_per_request: "J per request", replicas: "replicas", share_pct_sm: "SM share", power_w: "power", utilisation_pct: "busy",
    share_pct_sm_total: "SM share", memory_mib_used: "memory", clock_mhz_sm: "clock", temperature_c: "temperature",
  };
  const LOCAL = "headroom-local-time";
  let local = false;
  try { local = localStorage.getItem(LOCAL) === "1"; } catch { /* a browser that keeps nothing */ }
  const zone = () => (local ? "local time" : "UTC");
  const shifted = (at) => new Date((at - (local ? new Date(at * 1e3).getTimezoneOffset() * 60 : 0)) * 1e3).toISOString();
  const said = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toString());

  function make(name, parent, words) {
    const element = document.createElement(name);
    if (words) element.textContent = words;
    parent.append(element);
    return element;
  }

  function marks(chart) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.lineWidth = 1;
    ctx.strokeStyle = ctx.fillStyle = css("--soft");
    ctx.font = `${10 * devicePixelRatio}px system-ui`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.setLineDash([3, 3]);
    const edge = bbox.left + bbox.width;
    const seen = asked.marks.map(({ at, text }) => ({ x: chart.valToPos(at, "x", true), text })).filter(({ x }) => x >= bbox.left && x <= edge);
    for (const { x } of seen) {
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    // The newest first, so that it is named whatever came shortly before; then whoever has room left of it.
    let free = edge;
    for (const { x, text } of seen.sort((one, other) => other.x - one.x)) {
      const wide = ctx.measureText(text).width;
      const left = x + wide <= free ? x : free === edge ? edge - wide : -1;
      if (left < bbox.left) continue;
      ctx.fillText(text, left, bbox.top - 4 * devicePixelRatio);
      free = left - 8 * devicePixelRatio;
    }
    ctx.restore();
  }

  function build(told) {
    const figure = make("section", place), names = told.line == null ? told.fields : [...told.fields, told.line_name];
    figure.className = "chart";
    figure.id = "chart-" + told.fields[0];
    make("h3", figure, told.name);
    const plot = make("div", figure), legend = make("p", figure), details = make("details", figure);
    plot.className = "plot";
    legend.className = "legend";
    make("summary", details, "As a table");
    const clock = (_, ticks) => ticks.map((at) => shifted(at).slice(...(span > 172800 ? [5, 10] : [11, 16])));
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: "11px system-ui" };
    const range = (_, low, high) => {
      if (!told.near) return [Math.min(0, low || 0), (high || 1) * 1.08];
      const from = Math.min(low ?? 1, told.line ?? 1);
      return [Math.max(0, from - (1 - from) * 0.2 - 0.002), 1.001];
    };
    const chart = new uPlot({
      width: plot.clientWidth, height: HEIGHT, legend: { show: false }, padding: [asked.marks.length ? 18 : null, null, null, null], tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
      cursor: { sync: { key: "headroom" } }, scales: { y: { range } },
      axes: [{ ...axis, values: clock, space: 60 }, { ...axis, size: 52 }],
      series: [{}, ...names.map((name, index) => ({
        label: name, width: 1.5, stroke: index === told.fields.length ? css("--bad") : css("--s" + index), dash: index === told.fields.length ? [6, 4] : undefined,
        spanGaps: false, points: { show: false },
      }))],
      hooks: {
        draw: [marks],
        setSelect: [(chart) => { if (chart.select.width > 0) entry.zoomed = true; }],
        setCursor: [(chart) => tell(chart.cursor.idx)],
      },
    }, [[], ...names.map(() => [])], plot);
    function tell(at) {
      const parts = names.map((name, index) => {
        const key = document.createElement("span"), dot = document.createElement("i");
        dot.className = index === told.fields.length ? "line" : "s" + index;
        key.append(dot, (WORDS[name] || name) + (at == null ? "" : " " + said(chart.data[index + 1][at])));
        return key;
      });
      legend.replaceChildren(at == null ? "" : shifted(chart.data[0][at]).slice(11, 19) + " " + zone(), ...parts);
    }
    const entry = { told, names, chart, plot, details, tell, zoomed: false };
    chart.over.addEventListener("dblclick", () => { entry.zoomed = false; });
    details.addEventListener("toggle", () => table(entry));
    tell(null);
    made.push(entry);
  }

  function table({ told, names, chart, details }) {
    if (!details.open) return;
    // The panel stays, with the focus and how far it is scrolled.
    const panel = details.querySelector(".panel") || make("div", details);
    Object.assign(panel, { className: "panel", tabIndex: 0, role: "region", ariaLabel: told.name });
    const body = document.createElement("table");
    const head = make("tr", make("thead", body)), rows = make("tbody", body);
    for (const name of [zone(), ...names.map((name) => WORDS[name] || name)]) make("th", head, name);
    const every = Math.max(1, Math.ceil(chart.data[0].length / ROWS_MAX));
    for (let at = chart.data[0].length - 1; at >= 0; at -= every) {
      const row = make("tr", rows);
      make("td", row, shifted(chart.data[0][at]).slice(5, 19).replace("T", " "));
      for (const column of chart.data.slice(1)) make("td", row, said(column[at]));
    }
    panel.replaceChildren(body);
  }

  function show(entry, data) {
    entry.chart.setData(data, !entry.zoomed);
    if (entry.zoomed) entry.chart.redraw();
  }

  let grid = null;
  async function fetchAll() {
    const query = new URLSearchParams({ step_s: step, from: new Date(Date.now() - span * 1000).toISOString(), together: asked.together || "each" });
    for (const subject of asked.subjects) query.append("subject", subject);
    for (const field of new Set(asked.charts.flatMap((told) => told.fields))) query.append("field", field);
    const answer = await fetch("/console/telemetry?" + query);
    if (!answer.ok) return;
    grid = await answer.json();
    const begun = Date.parse(grid.start) / 1000;
    for (const entry of made) {
      const columns = entry.told.fields.map((field) => grid.items.find((line) => line.field === field).values);
      const times = columns[0].map((_, index) => begun + index * grid.step_s);
      // The last step may still be under way.
      const kept = times.length - 1;
      const data = [times.slice(0, kept), ...columns.map((column) => column.slice(0, kept))];
      if (entry.names.length > columns.length) data.push(data[0].map(() => entry.told.line));
      show(entry, data);
      table(entry);
    }
  }

  // What happens now is the line's end.
  document.addEventListener("headroom", function (event) {
    const { topic, things } = event.detail, [wanted, ...rest] = asked.topic.split("/");
    const thing = topic === wanted ? things[rest.join("/")] : null;
    if (!thing || !grid) return;
    const now = Date.now() / 1000;
    for (const entry of made) {
      const { told, chart } = entry;
      if (!told.live || thing[told.live] === undefined) continue;
      const at = told.live === "latency_ms_p99" ? 1 : 0;
      const data = chart.data.map((column) => Array.from(column));
      data[0].push(now);
      entry.names.forEach((_, index) => data[index + 1].push(index === told.fields.length ? told.line : index === at ? thing[told.live] : null));
      show(entry, data);
      chart.root.dataset.last = String(thing[told.live]);
    }
  });

  place.replaceChildren();
  if (!asked.charts.length) return;
  asked.charts.forEach(build);
  const tools = document.createElement("label"), choice = document.createElement("input");
  Object.assign(choice, { type: "checkbox", checked: local });
  tools.className = "soft clock";
  tools.append(choice, " charts in local time");
  place.before(tools);
  choice.addEventListener("change", function () {
    local = choice.checked;
    try { localStorage.setItem(LOCAL, local ? "1" : ""); } catch { /* for this page alone, then */ }
    for (const entry of made) {
      entry.chart.redraw(false, true);
      entry.tell(null);
      table(entry);
    }
  });
  fetchAll();
  window.setInterval(fetchAll, REFETCH_MS);
  new ResizeObserver(function () {
    for (const { chart, plot } of made) if (plot.clientWidth !== chart.width) chart.setSize({ width: plot.clientWidth, height: HEIGHT });
  }).observe(place);
})();
