// Keeps the page live: the server renders the same fragment again whenever something changed and streams it here.
// Only what differs is touched, so that a selection, the focus and how far a panel is scrolled stay as they are.
"use strict";
(function () {
  const asked = document.querySelector("form[data-submit]");
  if (asked) asked.requestSubmit();
})();
(function () {
  const RETRY_MS = 2000;
  const live = document.getElementById("board");
  const link = document.getElementById("link");
  if (!live || !window.EventSource) return;

  function say(text, lost) {
    if (link.textContent === text) return;
    link.textContent = text;
    link.classList.toggle("lost", lost);
    link.classList.toggle("live", text === "live");
  }

  function become(old, fresh) {
    if (old.nodeName !== fresh.nodeName) {
      old.replaceWith(fresh);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const name of fresh.getAttributeNames()) {
      if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
    }
    adopt(old, fresh);
  }

  function adopt(old, fresh) {
    const next = Array.from(fresh.childNodes);
    while (old.childNodes.length > next.length) old.lastChild.remove();
    next.forEach(function (node, index) {
      if (index < old.childNodes.length) become(old.childNodes[index], node);
      else old.append(node);
    });
  }

  // A reload shows what there is now, be it the sign-in, but only when there is somebody to answer it.
  function startOver() {
    say("connection lost, trying again", true);
    window.setTimeout(function () {
      fetch("/").then(async function (answer) {
        await answer.text();
        if (answer.status < 500) window.location.reload();
        else startOver();
      }).catch(startOver);
    }, RETRY_MS);
  }

  say("connecting", false);
  const source = new EventSource("/console/stream");
  source.addEventListener("fragment", function (event) {
    const fresh = document.createElement("template");
    fresh.innerHTML = event.data;
    adopt(live, fresh.content);
    say("live", false);
  });
  source.addEventListener("away", function () {
    say("no fresh numbers, trying again", true);
  });
  source.addEventListener("end", function () {
    source.close();
    startOver();
  });
  // A stream that broke is opened again by the browser, one that was refused is not.
  source.addEventListener("error", function () {
    if (source.readyState === EventSource.CLOSED) startOver();
    else say("connection lost, trying again", true);
  });
})();
