// Rows that fold out: a line of cells, and what is under it.

import { element, setText } from "./dom.js";

/**
 * A row with `columns` cells, the first of which is a button that folds out `details`. On a narrow screen every
 * cell is shown with its `labels` entry. `fill(details)` is called whenever they are visible.
 */
export function foldingRow(labels, numeric) {
  const cells = labels.map((label, index) =>
    element("span", { role: "cell", class: numeric[index] ? "number" : "", data: { label } }),
  );
  const name = element("span", { class: "cell-name" });
  const button = element("button", { type: "button", class: "fold", "aria-expanded": "false" }, name);
  cells[0].append(button);
  const line = element("div", { role: "row", class: "line" }, ...cells);
  const details = element("div", { class: "details", hidden: true });
  const row = element("div", { class: "folding" }, line, details);
  let fill = () => {};
  button.addEventListener("click", () => {
    details.hidden = !details.hidden;
    button.setAttribute("aria-expanded", String(!details.hidden));
    fill(details);
  });
  row.set = (texts, filler) => {
    texts.forEach((text, index) => setText(index ? cells[index] : name, text));
    fill = filler;
    if (!details.hidden) fill(details);
  };
  return row;
}

/** Bring a plain table of texts up to date, cell by cell. */
export function fillTable(details, head, rows) {
  let table = details.querySelector("table");
  if (table === null) {
    const cells = head.map((each) => element("th", { scope: "col" }, each));
    table = element("table", {}, element("thead", {}, element("tr", {}, ...cells)), element("tbody"));
    details.replaceChildren(table);
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((texts, index) => {
    const row = body.rows[index] ?? body.insertRow();
    texts.forEach((text, column) => setText(row.cells[column] ?? row.insertCell(), text));
  });
}
