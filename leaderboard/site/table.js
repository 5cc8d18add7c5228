"use strict";
// Sorting and filtering. A row is a tbody; its sort values are in data-value of its cells, as plain numbers.
// The state is kept in the address after the #, so that a view can be linked to.
(() => {
  const form = document.getElementById("filters");
  const status = document.getElementById("status");
  const fields = { q: form.elements.q, trust: form.elements.trust, status: form.elements.status };
  const tables = [...document.querySelectorAll("table[data-suite]")].map((table) => {
    const heads = [...table.tHead.rows[0].cells];
    const rows = [...table.tBodies];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    return { table, heads, rows, texts, suite: table.dataset.suite, sorted: null };
  });

  const value = (row, column, kind) => {
    const stored = row.rows[0].cells[column].dataset.value;
    if (stored === undefined || stored === "") return null;
    return kind === "text" ? stored : Number(stored);
  };

  const compare = (one, two, kind) => (kind === "text" ? one.localeCompare(two, "en") : one - two);

  function sort(of, column, down) {
    const kind = column === null ? null : of.heads[column].dataset.kind;
    const order = of.rows.map((row, place) => ({ row, place, at: column === null ? null : value(row, column, kind) }));
    order.sort((a, b) => {
      if (column === null) return a.place - b.place;
      // Rows that are not ranked stay last, and before them those without a number, in either direction.
      const behind = Number(a.row.dataset.last) - Number(b.row.dataset.last) || (a.at === null) - (b.at === null);
      if (behind) return behind;
      const apart = a.at === null ? 0 : compare(a.at, b.at, kind);
      return (down ? -apart : apart) || a.place - b.place;
    });
    of.table.append(...order.map((each) => each.row));
    of.heads.forEach((head, place) => {
      if (place === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    of.sorted = column === null ? null : { column, down };
  }

  function filter() {
    const words = fields.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const trusts = fields.trust.value.split(" ").filter(Boolean);
    let shown = 0, all = 0;
    for (const of of tables) {
      of.rows.forEach((row, place) => {
        const matches = words.every((word) => of.texts[place].includes(word));
        const trusted = !trusts.length || trusts.includes(row.dataset.trust);
        const stands = !fields.status.value || row.dataset.status === fields.status.value;
        row.hidden = !(matches && trusted && stands);
        shown += !row.hidden;
        all += 1;
      });
    }
    const orders = tables.filter((of) => of.sorted).map((of) => {
      const name = of.heads[of.sorted.column].dataset.name;
      return `${of.suite} by ${name}, ${of.sorted.down ? "descending" : "ascending"}`;
    });
    status.textContent = `${shown} of ${all} rows shown${orders.length ? `; sorted: ${orders.join("; ")}` : ""}.`;
  }

  function remember() {
    const state = new URLSearchParams();
    for (const [name, field] of Object.entries(fields)) if (field.value) state.set(name, field.value);
    for (const of of tables) {
      if (of.sorted) state.set(`sort.${of.suite}`, (of.sorted.down ? "-" : "") + of.heads[of.sorted.column].dataset.key);
    }
    const fragment = state.toString();
    try { history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search); } catch { /* the view is right all the same */ }
  }

  function restore() {
    const fragment = location.hash.slice(1);
    const state = new URLSearchParams(fragment.includes("=") ? fragment : "");
    for (const [name, field] of Object.entries(fields)) {
      const wanted = state.get(name) ?? "";
      const known = !field.options || [...field.options].some((option) => option.value === wanted);
      field.value = known ? wanted : "";
    }
    for (const of of tables) {
      const wanted = state.get(`sort.${of.suite}`) ?? "";
      const column = of.heads.findIndex((head) => head.dataset.key && head.dataset.key === wanted.replace(/^-/, ""));
      sort(of, column < 0 ? null : column, wanted.startsWith("-"));
    }
    filter();
  }

  for (const of of tables) {
    of.heads.forEach((head, column) => {
      if (!head.dataset.key) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const again = of.sorted && of.sorted.column === column;
        sort(of, column, again ? !of.sorted.down : head.dataset.first === "down");
        filter();
        remember();
      });
    });
  }
  form.addEventListener("input", () => { filter(); remember(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.elements.reset.addEventListener("click", () => {
    for (const field of Object.values(fields)) field.value = "";
    for (const of of tables) sort(of, null, false);
    filter();
    remember();
  });
  addEventListener("hashchange", restore);
  restore();
  form.hidden = false;
})();
