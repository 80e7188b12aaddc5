"use strict";
// The table of clients: sorted by a header, filtered by the form above it, walked through with the
// arrow keys. And the button that turns the page dark or light. No other file, no request.

const root = document.documentElement;
const report = JSON.parse(document.getElementById("panel-data").textContent);
const { columns, page: perPage } = report.table;
for (const column of columns) column.values ??= column.texts;
const titled = (title) => columns.find((column) => column.title === title)?.values;
const [names, groups, kinds] = ["Client", "Group", "Kind"].map(titled);
const states = { noted: new Set(report.table.noted), loses: new Set(report.table.loses) };
const everybody = names.map((name, place) => ({ name, group: groups[place], kind: kinds?.[place] ?? "" }));
const table = document.querySelector("table.sortable");
const body = table.tBodies[0];
const headers = [...table.querySelectorAll("thead th")];
const linkOf = (row) => row.querySelector("th a");
const encoded = (text) =>
  encodeURIComponent(text).replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`);
const links = everybody.map(({ group, name }) => `#client=${encoded(group)}/${encoded(name)}`);

// Clients are numbers, in the order of the data: a row is made when its page is looked at.
const rows = new Map([...body.rows].map((row, place) => [row, place]));
const made = new Map([...body.rows].map((row, place) => [place, row]));
let order = everybody.map((client, place) => place);
let visible = order;
let first = 0; // of the page that is looked at

function rowOf(place) {
  if (!made.has(place)) {
    const row = document.createElement("tr");
    columns.forEach(({ texts, values, numeric, notes }, column) => {
      const cell = document.createElement(column ? "td" : "th");
      cell.dataset.value = values[place];
      if (numeric) cell.className = "number";
      if (!column) {
        cell.scope = "row";
        const link = document.createElement("a");
        link.href = links[place];
        link.textContent = texts[place];
        cell.append(link);
      } else {
        for (const note of notes ? notes[place] : []) {
          const mark = document.createElement("span");
          mark.className = "note careful";
          mark.textContent = note;
          cell.append(mark, " ");
        }
        cell.append(texts[place]);
      }
      row.append(cell);
    });
    made.set(place, row);
    rows.set(row, place);
  }
  return made.get(place);
}

function draw() {
  const last = Math.max(0, visible.length - 1);
  first = Math.min(first, perPage * Math.floor(last / perPage));
  body.replaceChildren(...visible.slice(first, first + perPage).map(rowOf));
  const pager = document.getElementById("pager");
  pager.hidden = visible.length <= perPage;
  const end = Math.min(first + perPage, visible.length);
  document.getElementById("pager-place").textContent = `${first + 1} to ${end} of ${visible.length}`;
  document.getElementById("pager-back").disabled = first === 0;
  document.getElementById("pager-on").disabled = end === visible.length;
  reachable();
}

for (const [name, by] of [["back", -perPage], ["on", perPage]]) {
  document.getElementById(`pager-${name}`).addEventListener("click", () => {
    first += by;
    draw();
  });
}

// What is not known stays last whichever way the rest is sorted.
const collator = new Intl.Collator(undefined, { numeric: true });
headers.forEach((header, column) => {
  const { values, numeric } = columns[column];
  const keys = numeric ? Float64Array.from(values, Number) : values;
  const compare = numeric ? (a, b) => keys[a] - keys[b] : (a, b) => collator.compare(keys[a], keys[b]);
  const button = header.querySelector("button");
  button.addEventListener("click", () => {
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    const known = order.filter((place) => values[place] !== "");
    known.sort(ascending ? compare : (a, b) => compare(b, a));
    order = [...known, ...order.filter((place) => values[place] === "")];
    for (const other of headers) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const name = button.textContent.trim().replace(/\s+/g, " ");
    say(`Sorted by ${name}, ${ascending ? "ascending" : "descending"}.`);
    filter();
  });
});

function say(words) {
  document.getElementById(table.dataset.status).textContent = words;
}

// One client of the table is reached with Tab, the others from there with the arrow keys.
function reachable(chosen) {
  const link = chosen || (body.rows.length ? linkOf(body.rows[0]) : null);
  for (const row of body.rows) linkOf(row).tabIndex = linkOf(row) === link ? 0 : -1;
}

// Turn to the page where a client stands, and return its row; nothing where it is filtered away.
function turnTo(place) {
  const here = visible.indexOf(place);
  if (here < 0) return null;
  const page = perPage * Math.floor(here / perPage);
  if (page !== first) {
    first = page;
    draw();
  }
  return rowOf(place);
}

body.addEventListener("focusin", (event) => {
  const row = event.target.closest("tr");
  if (row && event.target === linkOf(row)) reachable(event.target);
});

body.addEventListener("keydown", (event) => {
  const row = event.target.closest("tr");
  if (!row || event.target !== linkOf(row) || event.ctrlKey || event.altKey || event.metaKey) return;
  const last = visible.length - 1;
  const here = visible.indexOf(rows.get(row));
  const places = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: last };
  if (!(event.key in places)) return;
  event.preventDefault();
  linkOf(turnTo(visible[Math.max(0, Math.min(last, places[event.key]))])).focus();
});

// A click anywhere in a row opens it, unless text is being marked.
body.addEventListener("click", (event) => {
  const row = event.target.closest("tr");
  if (row && !event.target.closest("a") && getSelection().isCollapsed) linkOf(row).click();
});

const form = document.getElementById("filter");
const wished = (name) => (document.getElementById(`filter-${name}`) || { value: "" }).value;

function filter() {
  const text = wished("text").trim().toLocaleLowerCase();
  const group = wished("group");
  const state = wished("state");
  visible = order.filter((place) => {
    const client = everybody[place];
    return (
      (text === "" || `${client.name} ${client.kind}`.toLocaleLowerCase().includes(text)) &&
      (group === "" || client.group === group) &&
      (state === "" || states[state].has(place))
    );
  });
  document.getElementById("filter-count").textContent = `${visible.length} of ${order.length} clients`;
  first = 0;
  draw();
}

form.hidden = false;
for (const kind of ["input", "change"]) form.addEventListener(kind, filter);
form.addEventListener("submit", (event) => event.preventDefault());
filter();

// The reader's own choice of colours is remembered where the browser allows it.
const theme = document.getElementById("theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);

function nameTheme() {
  theme.textContent = isDark() ? "Light colours" : "Dark colours";
}

function remembered(value) {
  try {
    if (value) localStorage.setItem("pacpfl-theme", value);
    return localStorage.getItem("pacpfl-theme");
  } catch {
    return null;
  }
}

theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  remembered(root.dataset.theme);
  nameTheme();
});
prefersDark.addEventListener("change", nameTheme);
if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
theme.hidden = false;
nameTheme();
