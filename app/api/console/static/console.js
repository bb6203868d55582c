// Keeps pages live. Numbers that say where they come from (data-live) follow the event stream by themselves; where things
// came or went, the page is fetched again, and only what differs is touched, so that a selection, the focus and how far a
// panel is scrolled stay as they are.
"use strict";
(function () {
  const RETRY_MS = 2000, REFRESH_MS = 1500;
  const asked = document.querySelector("form[data-submit]");
  if (asked) asked.requestSubmit();
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = !navigator.clipboard;
    button.addEventListener("click", () => navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent));
  }
  const main = document.getElementById("main"), link = document.getElementById("link");
  if (!main || !window.EventSource) return;

  // A form's answer that is no part of this page (signed out, refused) is a page of its own; none at all is said.
  const UNHEARD = "nobody answered, nothing changed: try again";
  document.addEventListener("htmx:beforeSwap", function (event) {
    const { xhr } = event.detail;
    if (xhr.status < 400 && xhr.responseText.includes('id="live"')) {
      if (link.textContent === UNHEARD) say(main.dataset.topics ? "live" : "");
      return;
    }
    event.preventDefault();
    window.location.assign(xhr.responseURL);
  });
  document.addEventListener("htmx:sendError", () => say(UNHEARD));

  // --- Numbers, as the server writes them
  const thin = (text) => text.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
  function number(value, digits) {
    const [whole, part] = Number(value).toFixed(digits).split(".");
    return thin(whole) + (part ? "." + part : "");
  }
  const FORMATS = {
    n0: (value) => number(value, 0), n1: (value) => number(value, 1), n2: (value) => number(value, 2),
    pct: (value) => (100 * value).toFixed(1) + " %", part: (value, of) => FORMATS.pct(value / of), done: (value, of) => FORMATS.pct(Math.min(1, value / of)), missed: (kept, of) => FORMATS.pct((1 - kept) / of), usd: (value) => "$" + number(value, 2) + "/h", text: String,
  };
  const tone = (value) => (value === null ? "soft" : value >= 0.98 ? "good" : value >= 0.9 ? "warn" : "bad");

  const told = (element, value) => (value === null || value === undefined ? "–" : FORMATS[element.dataset.as](value, element.dataset.of));
  const misses = ({ slo_attainment: kept, slo }) => typeof kept === "number" && slo?.percentile < 100 && kept < slo.percentile / 100;
  function put(element, value) {
    const as = element.dataset.as, text = told(element, value);
    if (as === "pct") element.className = tone(value);
    if (as === "missed") element.className = value !== null && (1 - value) / element.dataset.of > 1 ? "bad" : "";
    if (element.textContent === text) return;
    if (element.firstChild && element.childNodes.length === 1) element.firstChild.data = text;
    else element.textContent = text;
    changed.add(element);
  }
  // One layout for all that a piece of news changed: asked for each number, it is one for each.
  const changed = new Set();
  function flash() {
    for (const element of changed) element.classList.remove("live-changed");
    if (changed.size) void main.offsetWidth;
    for (const element of changed) element.classList.add("live-changed");
    changed.clear();
  }

  function bound() {
    const found = new Map();
    for (const element of document.querySelectorAll("[data-live]")) {
      const name = element.dataset.live;
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(element);
    }
    return found;
  }

  // --- What differs of a page
  function become(old, fresh) {
    if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.hasAttribute("data-keep")) return;
    if (old.matches("input, select, textarea, details[open]")) return;
    for (const name of old.getAttributeNames()) {
      if (!fresh.hasAttribute(name) && !(name === "class" && old.dataset.live)) old.removeAttribute(name);
    }
    for (const name of fresh.getAttributeNames()) {
      if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
    }
    adopt(old, fresh);
  }
  function adopt(old, fresh) {
    const next = Array.from(fresh.childNodes);
    const named = (nodes, from, id) => id && Array.from(nodes).slice(from).find((node) => node.id === id);
    next.forEach(function (node, index) {
      const at = () => old.childNodes[index];
      // What has a name stays itself, with the focus that it may have, where others came, went or changed places before it.
      const own = at()?.id !== node.id && named(old.childNodes, index + 1, node.id);
      while (own && at() !== own && !named(next, index + 1, at().id)) at().remove();
      if (own && at() !== own) old.moveBefore ? old.moveBefore(own, at()) : old.insertBefore(own, at());
      const now = at();
      if (now && now.id !== node.id && named(next, index + 1, now.id)) now.before(node);
      else if (now) become(now, node);
      else old.append(node);
    });
    while (old.childNodes.length > next.length) old.lastChild.remove();
  }

  let due = 0, askedAt = Date.now();
  function refresh() {
    if (due) return;
    due = window.setTimeout(async function () {
      due = 0;
      askedAt = Date.now();
      try {
        const answer = await fetch(window.location.href, { headers: { accept: "text/html" } });
        if (!answer.ok) return;
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
        if (fresh) adopt(document.getElementById("live"), fresh);
        else window.location.reload();
      } catch { /* the stream says that nobody answers */ }
    }, REFRESH_MS * (0.7 + 0.6 * Math.random()));
  }

  // --- The stream
  function say(text) {
    if (link.textContent === text) return;
    link.textContent = text;
    link.className = text === "live" ? "soft live" : text.includes("try") ? "lost" : "soft";
  }
  function startOver() {
    say("connection lost, trying again");
    window.setTimeout(function () {
      fetch(window.location.href).then(async function (answer) {
        await answer.text();
        if (answer.status < 500) window.location.reload();
        else startOver();
      }).catch(startOver);
    }, RETRY_MS);
  }

  const known = {};
  const STRUCTURE = { fleet: ["generation", "plan", "stood_in", "led"], cycles: ["state", "generation"], nodes: ["up", "schedulable"], services: ["replicas_planned", "replicas_ready"], work: ["replicas_planned", "replicas_ready", "evictions"] };
  const DRAWN = "share_pct_sm_held";
  function heard(topic, data) {
    say("live");
    const things = (known[topic] ??= {}), elements = bound(), first = data.whole && !Object.keys(things).length;
    if (data.whole) for (const id of Object.keys(things)) if (!(id in data.set)) data.gone.push(id);
    let moved = data.gone.length > 0;
    for (const [id, fields] of Object.entries(data.set)) {
      // The whole comes again after a stream that broke: what differs from before it happened meanwhile.
      const before = things[id] || {}, other = (name) => !first && name in fields && before[name] !== fields[name];
      if (!things[id] && !first) moved = true;
      if (!first && topic + "/" + id === main.dataset.watch) moved = true;
      if ((STRUCTURE[topic] || []).some(other)) moved = true;
      const missed = misses(before);
      things[id] = Object.assign(things[id] || {}, fields);
      // Who needs somebody is another now.
      if (!first && missed !== misses(things[id])) moved = true;
      for (const [name, value] of Object.entries(fields)) {
        for (const element of elements.get(topic + "/" + id + "/" + name) || []) {
          // A number beside a bar changes with it: who holds what is another now.
          if (name !== DRAWN) put(element, value);
          else if (element.textContent !== told(element, value)) moved = true;
        }
      }
    }
    flash();
    for (const id of data.gone) delete things[id];
    document.dispatchEvent(new CustomEvent("headroom", { detail: { topic, data, things } }));
    if (moved) refresh();
  }

  const topics = main.dataset.topics;
  if (!topics) {
    link.textContent = "";
    link.className = "";
    return;
  }
  const { every } = main.dataset, isOld = () => !document.hidden && Date.now() - askedAt >= 1000 * every;
  if (every) window.setInterval(() => isOld() && refresh(), 250 * every);
  let source;
  function listen() {
    say("connecting");
    source = new EventSource("/console/events?topics=" + topics);
    for (const topic of topics.split(",")) {
      source.addEventListener(topic, (event) => heard(topic, JSON.parse(event.data)));
    }
    source.addEventListener("away", () => say("no fresh numbers, trying again"));
    // A stream that broke is opened again by the browser, one that was refused is not.
    source.addEventListener("error", function () {
      if (source.readyState === EventSource.CLOSED) startOver();
      else say("connection lost, trying again");
    });
  }
  // A browser has six connections to a server for all of its tabs: only those that are seen keep one.
  function seen() {
    source?.close();
    if (document.hidden) return;
    if (source) refresh();
    listen();
  }
  document.addEventListener("visibilitychange", seen);
  window.addEventListener("pageshow", (event) => event.persisted && seen());
  window.addEventListener("pagehide", () => source?.close());
  seen();
})();
