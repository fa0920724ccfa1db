// Open folded tables for printing, and fold them again afterwards.
(function () {
  var opened = [];
  window.addEventListener("beforeprint", function () {
    var folded = document.querySelectorAll("details:not([open])");
    opened = Array.prototype.slice.call(folded);
    opened.forEach(function (one) { one.setAttribute("open", ""); });
  });
  window.addEventListener("afterprint", function () {
    opened.forEach(function (one) { one.removeAttribute("open"); });
    opened = [];
  });
})();

// Long tables: a field that keeps the rows with a word, and headings that sort by their column.
(function () {
  function number(cell) { return parseFloat(cell.textContent.replace("\u2212", "-")); }
  function sortBy(body, column, down) {
    var rows = Array.prototype.slice.call(body.rows);
    rows.sort(function (a, b) {
      var x = a.cells[column], y = b.cells[column], order = number(x) - number(y);
      if (column === 0 || isNaN(order)) { order = x.textContent.localeCompare(y.textContent); }
      return down ? -order : order;
    });
    rows.forEach(function (row) { body.appendChild(row); });
  }
  Array.prototype.forEach.call(document.querySelectorAll("table"), function (table) {
    var body = table.tBodies[0];
    if (!body || body.rows.length < 40 || !table.tHead) { return; }
    var field = document.createElement("input");
    field.type = "search";
    field.placeholder = "search";
    field.setAttribute("aria-label", "search in this table");
    field.addEventListener("input", function () {
      var word = field.value.toLowerCase();
      Array.prototype.forEach.call(body.rows, function (row) {
        row.hidden = row.textContent.toLowerCase().indexOf(word) < 0;
      });
    });
    table.parentNode.insertBefore(field, table);
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (head, column) {
      var button = document.createElement("button"), down = true;
      button.type = "button";
      while (head.firstChild) { button.appendChild(head.firstChild); }
      head.appendChild(button);
      button.addEventListener("click", function () {
        down = !down;
        sortBy(body, column, down);
      });
    });
  });
})();
