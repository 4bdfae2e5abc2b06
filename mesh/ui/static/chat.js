// A chat as it goes on: words as they come, then what was said, and the form that is due. Without it, load the page again.
"use strict";

(() => {
  const part = (id) => document.getElementById(id);
  let source = null;
  let followed = "";
  let speaks = "";

  // Puts in what is new. A form that somebody fills in stays, as long as it is the one that is due.
  async function refresh() {
    const answer = await fetch(location.pathname + location.search, { headers: { "hx-request": "true" } }).catch(() => null);
    if (answer && (answer.status === 401 || answer.status === 403)) return location.reload();
    if (!answer || !answer.ok) return setTimeout(refresh, 2000);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    const isNew = part("talk").dataset.sign !== next.getElementById("talk").dataset.sign;
    if (isNew) {
      const had = part("turn").contains(document.activeElement);
      for (const id of ["talk", "turn"]) {
        if (id === "talk" || !isTyping(next)) part(id).replaceWith(document.adoptNode(next.getElementById(id)));
      }
      hush();
      settle(had);
    } else settle(false);
  }

  function isTyping(next) {
    const shown = part("turn").querySelector("input[name=n]");
    const due = next.querySelector("#turn input[name=n]");
    return shown && due && shown.value === due.value;
  }

  function hush() {
    part("live").hidden = true;
    speaks = part("live").querySelector(".says").textContent = "";
  }

  // Follows the message that is under way, and brings the form that is due into sight.
  function settle(focus) {
    const turn = part("turn");
    if (turn.dataset.request) follow(turn.dataset.request);
    const field =
      turn.querySelector("[data-send]") || turn.querySelector("textarea, input:not([type=hidden]), select");
    if (field && (focus || document.activeElement === document.body)) field.focus({ preventScroll: true });
    turn.scrollIntoView({ block: "end" });
  }

  function follow(request) {
    if (followed === request && source) return;
    source?.close();
    followed = request;
    source = new EventSource(`/requests/${encodeURIComponent(request)}/live`);
    source.addEventListener("note", (event) => note(JSON.parse(event.data)));
    source.addEventListener("grown", (event) => {
      if (JSON.parse(event.data).n > Number(part("turn").dataset.head ?? -1)) refresh();
    });
    source.addEventListener("ended", () => {
      source.close();
      refresh();
    });
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) return;
      source = null; // it may not be in the log yet
      setTimeout(refresh, 1000);
    };
  }

  function note(heard) {
    const room = part("live");
    const says = room.querySelector(".says");
    room.querySelector(".who").textContent = heard.agent;
    room.hidden = false;
    if (heard.kind === "text") {
      if (heard.again || speaks !== heard.turn + heard.round) says.textContent = "";
      speaks = heard.turn + heard.round;
      says.textContent = (says.textContent + heard.text).slice(-20000);
    } else if (heard.kind === "step") {
      room.querySelector(".step").textContent = `${heard.name} ${heard.state}`;
    }
    room.scrollIntoView({ block: "nearest" });
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || !event.target.matches("[data-send]")) return;
    event.preventDefault();
    event.target.form.requestSubmit();
  });
  document.addEventListener("submit", (event) => {
    const button = event.target.closest("#turn form")?.querySelector("button");
    if (button) setTimeout(() => (button.disabled = true));
  });
  addEventListener("pageshow", () => part("turn").querySelectorAll("button").forEach((each) => (each.disabled = false)));
  settle(true);
})();
