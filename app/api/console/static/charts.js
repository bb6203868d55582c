// Charts of one subject over time, by uPlot: the series come in one request, what happens now from the event stream.
"use strict";
(function () {
  const place = document.getElementById("charts");
  if (!place || !window.uPlot) return;
  const asked = JSON.parse(place.dataset.charts);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const REFETCH_MS = 60000;
  const span = asked.hours * 3600, step = Math.max(5, Math.ceil(span / 360));
  const made = [];
  const WORDS = {
    offered_rps: "offered", completed_rps: "served", dropped_rps: "dropped", latency_ms_p50: "p50", latency_ms_p99: "p99", violation_fraction: "missed",
    replicas: "replicas", share_pct_sm: "SM share", power_w: "power", utilisation_pct: "busy", share_pct_sm_total: "SM share", memory_mib_used: "memory", clock_mhz_sm: "clock",
  };
  place.replaceChildren();

  function marks(chart) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.lineWidth = 1;
    ctx.strokeStyle = css("--strong");
    ctx.setLineDash([3, 3]);
    for (const mark of asked.marks) {
      const x = chart.valToPos(mark.at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  function build(told) {
    const figure = document.createElement("section"), plot = document.createElement("div");
    const title = document.createElement("h3"), legend = document.createElement("p");
    figure.className = "chart";
    plot.className = "plot";
    legend.className = "legend";
    title.textContent = told.name;
    figure.append(title, plot, legend);
    place.append(figure);
    const names = told.slo && asked.slo_ms ? [...told.fields, "SLO"] : told.fields;
    const clock = (_, ticks) => ticks.map((at) => new Date(at * 1e3).toISOString().slice(...(span > 172800 ? [5, 10] : [11, 16])));
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: "11px system-ui" };
    const chart = new uPlot({
      width: plot.clientWidth, height: 172, legend: { show: false }, tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
      cursor: { sync: { key: "headroom" } }, scales: { y: { range: (_, low, high) => [Math.min(0, low || 0), (high || 1) * 1.08] } },
      axes: [{ ...axis, values: clock, space: 60 }, { ...axis, size: 52 }],
      series: [{}, ...names.map((name, index) => ({
        label: name, width: 1.5, stroke: name === "SLO" ? css("--bad") : css("--s" + index), dash: name === "SLO" ? [6, 4] : undefined, spanGaps: false, points: { show: false },
      }))],
      hooks: {
        draw: [marks],
        setCursor: [function (chart) {
          const at = chart.cursor.idx;
          const when = at == null ? "" : new Date(chart.data[0][at] * 1e3).toISOString().slice(11, 19) + " UTC  ";
          const value = (index) => (at == null ? "" : " " + (chart.data[index + 1][at]?.toPrecision(4) ?? "–"));
          legend.textContent = when + names.map((name, index) => (WORDS[name] || name) + value(index)).join(" · ");
        }],
      },
    }, [[], ...names.map(() => [])], plot);
    legend.textContent = names.map((name) => WORDS[name] || name).join(" · ");
    made.push({ told, names, chart, plot, figure });
  }

  let grid = null;
  async function fetchAll() {
    const query = new URLSearchParams({ step_s: step, from: new Date(Date.now() - span * 1000).toISOString() });
    query.append("subject", asked.subject);
    for (const field of new Set(asked.charts.flatMap((told) => told.fields))) query.append("field", field);
    const answer = await fetch("/console/telemetry?" + query);
    if (!answer.ok) return;
    grid = await answer.json();
    const begun = Date.parse(grid.start) / 1000;
    for (const { told, names, chart } of made) {
      const columns = told.fields.map((field) => grid.items.find((line) => line.field === field).values);
      const times = columns[0].map((_, index) => begun + index * grid.step_s);
      // Both last steps may still be under way.
      const kept = times.length - 1;
      const data = [times.slice(0, kept), ...columns.map((column) => column.slice(0, kept))];
      if (names.length > told.fields.length) data.push(data[0].map(() => asked.slo_ms));
      chart.setData(data);
    }
  }

  // What happens now is the line's end.
  document.addEventListener("headroom", function (event) {
    const { topic, things } = event.detail, [wanted, ...rest] = asked.topic.split("/");
    const thing = topic === wanted ? things[rest.join("/")] : null;
    if (!thing || !grid) return;
    const now = Date.now() / 1000;
    for (const { told, names, chart } of made) {
      if (!told.live) continue;
      const at = told.live === "latency_ms_p99" ? 1 : 0;
      const data = chart.data.map((column) => Array.from(column));
      data[0].push(now);
      names.forEach((name, index) => data[index + 1].push(name === "SLO" ? asked.slo_ms : index === at ? thing[told.live] : null));
      chart.setData(data);
      chart.root.dataset.last = String(thing[told.live]);
    }
  });

  asked.charts.forEach(build);
  fetchAll();
  window.setInterval(fetchAll, REFETCH_MS);
  new ResizeObserver(function () {
    for (const { chart, plot } of made) if (plot.clientWidth !== chart.width) chart.setSize({ width: plot.clientWidth, height: 172 });
  }).observe(place);
})();
