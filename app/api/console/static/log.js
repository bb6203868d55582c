// Follows what a service's workers write, while its panel is open. Lines are only ever added at the end, and the oldest go
// only while nobody has marked any of them; who has scrolled up stays where they are.
"use strict";
(function () {
  const LINES_MAX = 2000, AGAIN_MS = 3000;
  const panel = document.getElementById("log");
  if (!panel || !window.TextDecoderStream) return;
  const lines = panel.querySelector("pre"), said = panel.querySelector("[aria-live]"), replica = panel.querySelector("select");
  let reading = null;

  const say = (text) => { if (said.textContent !== text) said.textContent = text; };
  function write(told) {
    const line = document.createElement("span");
    if (!replica.value) {
      const who = document.createElement("b");
      who.textContent = told.replica.slice(told.replica.lastIndexOf("#")) + " ";
      line.append(who);
    }
    if ("problem" in told) line.className = "warn";
    line.append(("line" in told ? told.line : told.problem) + "\n");
    return line;
  }
  function add(found) {
    const atEnd = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4, marked = window.getSelection();
    lines.append(...found.map(write));
    const isMarked = !marked.isCollapsed && marked.containsNode(lines, true);
    while (lines.childElementCount > (isMarked ? 10 : 1) * LINES_MAX) lines.firstChild.remove();
    if (atEnd && !isMarked) lines.scrollTop = lines.scrollHeight;
    say("following");
  }

  async function follow(address, signal) {
    const answer = await fetch(address, { signal });
    if (answer.status >= 400 && answer.status < 500) {
      stop();
      return say((await answer.json()).detail);
    }
    if (!answer.ok) return;
    lines.textContent = "";
    say("asked its nodes, waiting");
    const source = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await source.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      const found = parts.filter((part) => part.startsWith("{")).map((part) => JSON.parse(part));
      if (found.length) add(found);
    }
  }
  async function read() {
    stop();
    const mine = reading = new AbortController();
    const address = panel.dataset.log + (replica.value ? "?replica=" + encodeURIComponent(replica.value) : "");
    while (!mine.signal.aborted) {
      try {
        await follow(address, mine.signal);
      } catch { /* said below */ }
      if (mine.signal.aborted) return;
      say("connection lost, trying again");
      await new Promise((done) => window.setTimeout(done, AGAIN_MS));
    }
  }
  function stop() {
    if (reading) reading.abort();
    reading = null;
  }
  panel.addEventListener("toggle", () => panel.open ? read() : stop());
  replica.addEventListener("change", read);
  window.addEventListener("pagehide", stop);
})();
