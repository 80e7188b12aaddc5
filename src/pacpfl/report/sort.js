"use strict";
// A click (or Enter, or Space) on a header sorts the table by that column, a second one the
// other way round. What is not known stays last either way.
for (const table of document.querySelectorAll("table.sortable")) {
  const headers = [...table.querySelectorAll("thead th")];
  const body = table.tBodies[0];
  const status = document.getElementById(table.dataset.status);
  headers.forEach((header, column) => {
    const numeric = header.classList.contains("number");
    const compare = (a, b) =>
      numeric ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
    header.querySelector("button").addEventListener("click", () => {
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
      const name = header.querySelector("button").textContent.trim().replace(/\s+/g, " ");
      status.textContent = `Sorted by ${name}, ${ascending ? "ascending" : "descending"}.`;
    });
  });
}
