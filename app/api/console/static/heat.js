// The fleet as a map of heat: every GPU a square, by rack and node, coloured by one of its numbers.
"use strict";
(function () {
  const canvas = document.getElementById("heat"), says = document.getElementById("heat-says");
  if (!canvas) return;
  const FIELDS = ["id", "index", "share_pct_sm_held", "utilisation_pct", "power_w", "memory_mib_used", "temperature_c", "price_usd_per_h", "well"];
  const KINDS = ["gpu_type", "memory_mib"], told = JSON.parse(document.getElementById("heat-told").textContent);
  const named = (names, values) => Object.fromEntries(names.map((name, index) => [name, values[index]]));
  const gpus = told.nodes.flatMap(([rack, node, rows]) => rows.map(([kind, ...row]) => ({ rack, node, ...named(KINDS, told.kinds[kind]), ...named(FIELDS, row) })));
  const opens = "opens" in canvas.dataset;
  if (gpus.length) says.textContent = opens ? "Point at a GPU; a click opens it." : "Point at a GPU.";
  for (const part of [canvas, canvas.parentElement.querySelector("form")]) part.hidden = false;
  const byId = new Map(gpus.map((gpu) => [gpu.id, gpu]));
  const select = document.getElementById("colour");
  // Asked once for each drawing: what a style comes to is dear, and thousands of squares share it.
  let styles = new Map();
  function css(name) {
    if (!styles.has(name)) styles.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    return styles.get(name);
  }
  const top = (name) => Math.max(1e-9, ...gpus.map((gpu) => gpu[name] || 0));
  const part = (value, most) => (value === null || value === undefined ? null : value / most);
  const PARTS = {
    share: (gpu) => part(gpu.share_pct_sm_held, 100), busy: (gpu) => part(gpu.utilisation_pct, 100), power: (gpu) => part(gpu.power_w, tops.power_w),
    memory: (gpu) => part(gpu.memory_mib_used, gpu.memory_mib), temperature: (gpu) => part(gpu.temperature_c, 95), cost: (gpu) => part(gpu.price_usd_per_h, tops.price_usd_per_h),
    health: (gpu) => (gpu.well ? 0.15 : 1),
  };
  let tops = {}, places = [], side = 14, waiting = false;

  function colour(level, ground) {
    if (level === null) return css("--line");
    const mix = Math.round(12 + 88 * Math.min(1, Math.max(0, level)));
    return `color-mix(in srgb, ${ground} ${mix}%, ${css("--card")})`;
  }

  function draw() {
    waiting = false;
    styles = new Map();
    const width = canvas.clientWidth, scale = window.devicePixelRatio || 1, gap = 2, kind = select.value;
    side = gpus.length > 2000 ? 8 : gpus.length > 400 ? 11 : 18;
    tops = { power_w: top("power_w"), price_usd_per_h: top("price_usd_per_h") };
    places = [];
    let x = 0, y = 0, rack = null, node = null;
    const labels = [];
    for (const gpu of gpus) {
      if (gpu.rack !== rack) {
        y += rack === null ? 0 : side + 8;
        labels.push([gpu.rack || "", 0, y + 10]);
        y += 15;
        x = 0;
        rack = gpu.rack;
        node = gpu.node;
      } else if (gpu.node !== node) {
        x += side / 2;
        node = gpu.node;
      }
      if (x + side > width) {
        x = 0;
        y += side + gap;
      }
      places.push([x, y, gpu]);
      x += side + gap;
    }
    const height = y + side + 4;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = height + "px";
    const paint = canvas.getContext("2d");
    paint.scale(scale, scale);
    paint.font = "11px system-ui";
    paint.fillStyle = css("--soft");
    for (const [text, at, line] of labels) paint.fillText(text, at, line);
    const ground = css(kind === "health" ? "--bad" : "--accent");
    for (const [left, line, gpu] of places) {
      paint.fillStyle = gpu.well ? colour(PARTS[kind](gpu), ground) : css("--bad");
      paint.fillRect(left, line, side, side);
      paint.strokeStyle = css("--strong");
      paint.strokeRect(left + 0.5, line + 0.5, side - 1, side - 1);
    }
  }
  const soon = () => { if (!waiting) { waiting = true; window.requestAnimationFrame(draw); } };

  function under(event) {
    const found = places.find(([x, y]) => event.offsetX >= x && event.offsetX <= x + side && event.offsetY >= y && event.offsetY <= y + side);
    return found ? found[2] : null;
  }
  canvas.addEventListener("mousemove", function (event) {
    const gpu = under(event), known = (value, unit, of = 1) => (value === null || value === undefined ? "–" : Math.round(value / of) + unit);
    canvas.style.cursor = gpu && opens ? "pointer" : "default";
    if (gpu) says.textContent = `${gpu.node} #${gpu.index} ${gpu.gpu_type}: ${known(gpu.share_pct_sm_held, " % held")}, ${known(gpu.utilisation_pct, " % busy")}, ${known(gpu.power_w, " W")}, ${known(gpu.memory_mib_used, " GiB", 1024)} used, ${known(gpu.temperature_c, " °C")}, $${gpu.price_usd_per_h.toFixed(2)}/h${gpu.well ? "" : ", silent or ill"}`;
  });
  canvas.addEventListener("click", function (event) {
    const gpu = under(event);
    if (gpu && opens) window.location.href = "/gpus/" + encodeURIComponent(gpu.id);
  });
  select.addEventListener("change", function () {
    window.history.replaceState(null, "", "?colour=" + select.value);
    soon();
  });
  document.addEventListener("headroom", function (event) {
    if (event.detail.topic !== "devices") return;
    for (const [id, fields] of Object.entries(event.detail.data.set)) {
      const gpu = byId.get(id);
      if (gpu) Object.assign(gpu, fields, { well: (fields.up ?? gpu.well) && fields.healthy !== false });
    }
    soon();
  });
  window.addEventListener("resize", soon);
  // After the first frame: what can be read comes before what is drawn.
  window.requestAnimationFrame(() => window.setTimeout(draw));
})();
