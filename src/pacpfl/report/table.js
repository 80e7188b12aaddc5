"use strict";
// The table of clients: sorted by a header, filtered by the form above it, walked through with the
// arrow keys. And the button that turns the page dark or light. No other file, no request.

const root = document.documentElement;
const table = document.querySelector("table.sortable");
const body = table.tBodies[0];
const headers = [...table.querySelectorAll("thead th")];
const all = [...body.rows];
const linkOf = (row) => row.querySelector("th a");
const shown = () => [...body.rows].filter((row) => !row.hidden);

// What is not known stays last whichever way the rest is sorted.
headers.forEach((header, column) => {
  const numeric = header.classList.contains("number");
  const compare = (a, b) =>
    numeric ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
  const button = header.querySelector("button");
  button.addEventListener("click", () => {
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    const value = (row) => row.cells[column].dataset.value;
    const rows = [...body.rows].sort((first, second) => {
      const a = value(first);
      const b = value(second);
      if (a === "" || b === "") return (a === "") - (b === "");
      return ascending ? compare(a, b) : compare(b, a);
    });
    body.append(...rows);
    for (const other of headers) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const name = button.textContent.trim().replace(/\s+/g, " ");
    say(`Sorted by ${name}, ${ascending ? "ascending" : "descending"}.`);
    reachable();
  });
});

function say(words) {
  document.getElementById(table.dataset.status).textContent = words;
}

// One client of the table is reached with Tab, the others from there with the arrow keys.
function reachable(chosen) {
  const rows = shown();
  const link = chosen || (rows.length ? linkOf(rows[0]) : null);
  for (const row of all) linkOf(row).tabIndex = linkOf(row) === link ? 0 : -1;
}

body.addEventListener("focusin", (event) => {
  const row = event.target.closest("tr");
  if (row && event.target === linkOf(row)) reachable(event.target);
});

body.addEventListener("keydown", (event) => {
  const row = event.target.closest("tr");
  if (!row || event.target !== linkOf(row) || event.ctrlKey || event.altKey || event.metaKey) return;
  const rows = shown();
  const last = rows.length - 1;
  const here = rows.indexOf(row);
  const places = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: last };
  if (!(event.key in places)) return;
  event.preventDefault();
  linkOf(rows[Math.max(0, Math.min(last, places[event.key]))]).focus();
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
  const named = headers.map((header) => header.textContent.trim());
  const kind = named.indexOf("Kind");
  let count = 0;
  for (const row of all) {
    const words = [0, kind].map((place) => (place < 0 ? "" : row.cells[place].dataset.value));
    row.hidden =
      !words.join(" ").toLocaleLowerCase().includes(text) ||
      (group !== "" && row.dataset.group !== group) ||
      (state !== "" && !(state in row.dataset));
    count += !row.hidden;
  }
  document.getElementById("filter-count").textContent = `${count} of ${all.length} clients`;
  reachable();
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
