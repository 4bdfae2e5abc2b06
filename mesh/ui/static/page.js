// The page's behaviour: keys, times, the slider, and what happens now. Without it every view still works.
"use strict";

const $ = (query, from = document) => from.querySelector(query);
const all = (query, from = document) => [...from.querySelectorAll(query)];

// --- light and dark ---------------------------------------------------------------------------------

const dark = () =>
  (document.documentElement.dataset.theme ||
    (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function look() {
  const button = $("#look");
  button.hidden = false;
  button.textContent = dark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Show the page ${dark() ? "light" : "dark"}`);
}

// --- times: how long ago ----------------------------------------------------------------------------

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

function ago(seconds) {
  const [unit, size] = UNITS.find(([, each]) => seconds >= each) || ["s", 1];
  return `${Math.max(0, Math.floor(seconds / size))} ${unit} ago`;
}

function tellTimes() {
  for (const each of all("time.ago")) {
    const at = Date.parse(each.dateTime);
    if (Number.isNaN(at)) continue;
    each.title ||= each.dateTime;
    each.textContent = ago((Date.now() - at) / 1000);
  }
}

// --- keys -------------------------------------------------------------------------------------------

const VIEWS = { r: "/requests", c: "/chat", p: "/people", a: "/agents", m: "/mesh" };
let going = 0;

const rows = () => all("[data-row]").filter((row) => row.offsetParent !== null);
const chosen = () => $("[data-row].chosen");

function choose(step) {
  const here = rows();
  if (!here.length) return;
  const at = here.indexOf(chosen());
  const next = here[Math.min(here.length - 1, Math.max(0, at < 0 && step < 0 ? here.length - 1 : at + step))];
  chosen()?.classList.remove("chosen");
  next.classList.add("chosen");
  const link = $("a[href]", next) || next;
  link.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

// What htmx puts in the place of a list has the same row chosen as before.
let kept = "";

function swapped() {
  tellTimes();
  listFilters();
  if (kept && !chosen()) rows().find((row) => row.dataset.row === kept)?.classList.add("chosen");
}

function key(event) {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.ctrlKey || event.metaKey || event.altKey || typing || $("dialog[open]")) return;
  const soon = Date.now() - going < 1500;
  going = 0;
  if (soon && $(`.bar nav a[href="${VIEWS[event.key]}"]`)) location.assign(VIEWS[event.key]);
  else if (event.key === "g") going = Date.now();
  else if (event.key === "/") {
    $("#fold")?.setAttribute("open", "");
    $("input[type=search]")?.focus();
  }
  else if (event.key === "j") choose(1);
  else if (event.key === "k") choose(-1);
  else if (event.key === "Enter" && chosen() && !event.target.closest("a, button, summary")) $("a[href]", chosen())?.click();
  else if (event.key === "?") $("#keys").showModal();
  else return;
  event.preventDefault();
}

// --- a request: the slider, and what happens now -----------------------------------------------------

function slide(input) {
  const shown = $("#slider output");
  if (shown) shown.textContent = `${input.value} of ${input.max}`;
}

// A row of the picture leads to its entry in the list where that is on the page.
function jump(event) {
  const row = event.target.closest(".sequence a.row");
  const number = row && /(\d+)$/.exec(row.getAttribute("href"));
  const entry = number && document.getElementById(`e${number[1]}`);
  if (!entry || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  chosen()?.classList.remove("chosen");
  entry.classList.add("chosen");
  entry.scrollIntoView({ block: "center" });
  $("a[href], summary", entry)?.focus({ preventScroll: true });
}

function live(story) {
  const room = $("#live");
  const says = $(".says", room);
  const base = `/requests/${encodeURIComponent(story.dataset.request)}`;
  const source = new EventSource(`${base}/live`);
  let speaks = "";
  const mark = (on) => $("#live-mark")?.classList.toggle("off", !on);
  source.onopen = () => mark(true);
  source.onerror = () => mark(false);
  source.addEventListener("grown", (event) => {
    const head = JSON.parse(event.data).n;
    const slider = $("#slider input");
    const atEnd = !slider || slider.value === slider.max;
    if (slider && head > Number(slider.max)) {
      slider.max = head;
      if (atEnd) slider.value = head;
      slide(slider);
    }
    if (head > Number(story.dataset.head) && atEnd) {
      story.dataset.head = head;
      htmx.ajax("GET", location.pathname + location.search, { target: "#story", swap: "innerHTML" });
    }
  });
  source.addEventListener("note", (event) => {
    const note = JSON.parse(event.data);
    room.hidden = false;
    $(".who", room).textContent = note.agent;
    if (note.kind === "text") {
      if (note.again || speaks !== note.turn + note.round) says.textContent = "";
      speaks = note.turn + note.round;
      says.textContent = (says.textContent + note.text).slice(-20000);
    } else if (note.kind === "step") {
      $(".step", room).textContent = `${note.name} ${note.state}`;
    } else if (note.kind === "began") {
      says.textContent = "";
      $(".step", room).textContent = "began";
    } else {
      $(".step", room).textContent = note.failed || `proposes ${note.move || ""} ${note.to || ""}`;
    }
  });
  source.addEventListener("ended", () => {
    source.close();
    mark(false);
    const told = $("p.message.good"); // what was just done is said once: it outlives the reload
    if (told) sessionStorage.setItem("mesh-told", told.textContent);
    location.reload();
  });
}

function tellAgain() {
  const told = sessionStorage.getItem("mesh-told");
  sessionStorage.removeItem("mesh-told");
  if (!told || $("p.message.good")) return;
  const line = document.createElement("p");
  line.className = "message good";
  line.setAttribute("role", "status");
  line.textContent = told;
  $("#main").prepend(line);
}

// --- a decision: only the fields of the chosen answer ------------------------------------------------

function offer(form) {
  const chosen = $("input[type=radio]:checked", form)?.value;
  for (const part of all("[data-for]", form)) {
    part.hidden = part.disabled = !part.dataset.for.split(" ").includes(chosen);
  }
}

// --- saved filters: names for what --where takes, kept by this browser and by nothing else -------------

const FILTERS = "mesh-filters";
const MOST_FILTERS = 50;

function savedFilters() {
  try {
    const found = JSON.parse(localStorage.getItem(FILTERS) || "[]");
    return found.filter((each) => typeof each?.name === "string" && typeof each?.where === "string");
  } catch {
    return []; // another page of this address wrote something else there
  }
}

const wanted = () => $("[data-where]")?.dataset.where || "";

function saveFilters(filters, told) {
  try {
    localStorage.setItem(FILTERS, JSON.stringify(filters));
  } catch {
    told = "This browser keeps nothing more: the filter is not saved.";
  }
  listFilters();
  $("#saved [role=status]").textContent = told;
}

function listFilters() {
  const room = $("#saved");
  if (!room) return;
  room.hidden = false;
  const filters = savedFilters();
  const items = filters.map(({ name, where }) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.className = "button";
    link.href = `${room.dataset.view}?${new URLSearchParams({ where })}`;
    link.textContent = name;
    link.title = where;
    if (where === wanted()) link.setAttribute("aria-current", "true");
    const forget = document.createElement("button");
    forget.type = "button";
    forget.className = "plain";
    forget.textContent = "×";
    forget.setAttribute("aria-label", `Forget the filter ${name}`);
    forget.addEventListener("click", () =>
      saveFilters(savedFilters().filter((each) => each.name !== name), `${name} is forgotten.`));
    item.append(link, forget);
    return item;
  });
  const list = $("ul", room);
  list.hidden = !items.length;
  list.replaceChildren(...items);
}

function saveFilter(event) {
  event.preventDefault();
  const name = new FormData(event.target).get("name").trim();
  const others = savedFilters().filter((each) => each.name !== name);
  const told = $("#saved [role=status]");
  if (!name) return;
  if (!wanted()) told.textContent = "There is no filter yet: choose one, then save it.";
  else if (others.length >= MOST_FILTERS) told.textContent = `There are ${MOST_FILTERS} already: forget one first.`;
  else {
    saveFilters([...others, { name, where: wanted() }], `${name} is saved in this browser.`);
    event.target.reset();
    $("#saved details").open = false;
  }
}

// --- together ---------------------------------------------------------------------------------------

look();
tellAgain();
tellTimes();
listFilters();
$("#saved form")?.addEventListener("submit", saveFilter);
addEventListener("storage", (event) => event.key === FILTERS && listFilters());
setInterval(tellTimes, 20000);
const folds = matchMedia("(max-width: 640px)");
const fold = () => $("#fold") && ($("#fold").open = !folds.matches);
folds.addEventListener("change", fold);
fold();
for (const form of all("form.chooses")) {
  offer(form);
  form.addEventListener("change", () => offer(form));
}
document.addEventListener("keydown", key);
document.addEventListener("click", jump);
document.addEventListener("input", (event) => event.target.closest("#slider input") && slide(event.target));
document.addEventListener("htmx:before:swap", () => (kept = chosen()?.dataset.row));
document.addEventListener("htmx:after:swap", swapped);
$("#look").addEventListener("click", () => {
  const next = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("mesh-look", next);
  look();
});
$("#keys-open").hidden = false;
$("#keys-open").addEventListener("click", () => $("#keys").showModal());
const story = $("#story[data-open=yes]");
if (story) live(story);
