// Keeps the page live: the server renders the same fragment again whenever something changed and streams it here.
"use strict";
(function () {
  const live = document.getElementById("live");
  const link = document.getElementById("link");
  if (!live || !window.EventSource) return;
  const source = new EventSource("/console/stream");
  source.addEventListener("fragment", function (event) {
    live.innerHTML = event.data;
    link.textContent = "live";
    link.classList.remove("lost");
  });
  source.addEventListener("end", function () {
    source.close();
    window.location.reload();
  });
  source.onerror = function () {
    link.textContent = "connection lost, trying again";
    link.classList.add("lost");
  };
})();
