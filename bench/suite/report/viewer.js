"use strict";
// Filters, search and pages over the completions in #data. Texts are strangers': they become text nodes, never markup.
// Only one page of rows is in the document at a time. What is looked for is kept in the address after the #.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [CELL, ROUND, SENDER, VERDICT, REWARD, PAYLOAD, ITEM, PIECES, FACTS] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
  const MARKS = [[1, "payload"], [2, "masked"], [4, "hit"]];
  const HIT = 4;
  const PER_PAGE = 50;
  const CHOICES = { sender: SENDER, verdict: VERDICT, reward: REWARD, payload: PAYLOAD };

  const form = document.getElementById("filters");
  const list = document.getElementById("list");
  const status = document.getElementById("status");
  const only = document.getElementById("item");
  const navigations = [...document.querySelectorAll(".pages")];
  const field = (name) => form.elements.namedItem(name);
  const names = ["q", "cell", "sender", "verdict", "reward", "payload", "from", "to", "order"];
  const cellPlaces = new Map(data.cells.map((cell, place) => [cell.id, place]));
  const texts = data.rows.map((row) => row[PIECES].map((piece) => (typeof piece === "string" ? piece : piece[0])).join(""));
  const outcomeFact = data.facts.indexOf("outcome");
  const outcomes = data.rows.map((row) => Number(row[FACTS].find(([fact]) => fact === outcomeFact)?.[1] ?? -1) || 0);
  let lowered = null;
  let shown = data.rows.map((_, number) => number);
  let page = 0;
  let item = null;

  const make = (tag, name, ...inside) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    element.append(...inside);
    return element;
  };

  // --- which rows ---

  function wanted() {
    const tests = Object.entries(CHOICES).map(([name, place]) => {
      const value = field(name).value;
      return { name, place, value: value === "" ? null : Number(value) };
    });
    const cell = field("cell").value;
    tests.push({ name: "cell", place: CELL, value: cell === "" ? null : cellPlaces.get(cell) });
    return tests;
  }

  function filter() {
    const words = field("q").value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length && lowered === null) lowered = texts.map((text) => text.toLowerCase());
    const first = field("from").value === "" ? -Infinity : Number(field("from").value);
    const last = field("to").value === "" ? Infinity : Number(field("to").value);
    const tests = wanted();
    const counts = Object.fromEntries(tests.map((test) => [test.name, new Map()]));
    shown = [];
    data.rows.forEach((row, number) => {
      if (row[ROUND] < first || row[ROUND] > last || (item !== null && row[ITEM] !== item)) return;
      if (!words.every((word) => lowered[number].includes(word))) return;
      // A choice's numbers say how many rows it would show, so they leave that choice itself aside.
      const failed = tests.filter((test) => test.value !== null && row[test.place] !== test.value);
      for (const test of failed.length === 0 ? tests : failed.length === 1 ? failed : []) {
        counts[test.name].set(row[test.place], (counts[test.name].get(row[test.place]) ?? 0) + 1);
      }
      if (failed.length === 0) shown.push(number);
    });
    const order = field("order").value;
    if (order === "early") shown.sort((a, b) => data.rows[a][ROUND] - data.rows[b][ROUND] || a - b);
    if (order === "late") shown.sort((a, b) => data.rows[b][ROUND] - data.rows[a][ROUND] || a - b);
    if (order === "outcome") shown.sort((a, b) => outcomes[b] - outcomes[a] || a - b);
    if (order === "long") shown.sort((a, b) => texts[b].length - texts[a].length || a - b);
    for (const { name } of tests) label(field(name), counts[name]);
  }

  function label(select, counts) {
    for (const option of select.options) {
      if (option.value === "") continue;
      option.dataset.name ??= option.textContent;
      const count = counts.get(select.name === "cell" ? cellPlaces.get(option.value) : Number(option.value)) ?? 0;
      option.textContent = `${option.dataset.name} (${count.toLocaleString("en")})`;
    }
  }

  // --- one row ---

  function pieces(row, number, words) {
    const text = texts[number];
    const kinds = new Uint8Array(text.length);
    let start = 0;
    for (const piece of row[PIECES]) {
      const [part, kind] = typeof piece === "string" ? [piece, 0] : piece;
      kinds.fill(kind, start, start + part.length);
      start += part.length;
    }
    // A text whose lower case has another length (as of some Turkish letters) is searched, and its hits are not marked.
    if (words.length && lowered[number].length === text.length) {
      for (const word of words) {
        for (let at = lowered[number].indexOf(word); at >= 0; at = lowered[number].indexOf(word, at + word.length)) {
          for (let place = at; place < at + word.length; place += 1) kinds[place] |= HIT;
        }
      }
    }
    const made = document.createDocumentFragment();
    for (let from = 0, to = 0; from < text.length; from = to) {
      for (to = from + 1; to < text.length && kinds[to] === kinds[from];) to += 1;
      const kind = kinds[from];
      const part = text.slice(from, to);
      const name = MARKS.filter(([bit]) => kind & bit).map(([, word]) => word).join(" ");
      made.append(kind ? make("mark", name, part) : part);
    }
    return made;
  }

  function badge(name, kind, text) {
    const element = make("span", `badge ${name}`, text);
    element.dataset.kind = kind;
    return element;
  }

  function element(number, words) {
    const row = data.rows[number];
    const cell = data.cells[row[CELL]];
    const facts = row[FACTS].map(([fact, value]) => [data.facts[fact], value]);
    const numbers = make("span", "numbers", `round ${row[ROUND]}`);
    for (const [name, value] of facts) {
      const measured = name === "outcome" && row[PAYLOAD] === data.measured;
      if (name === "reward" || name === "advantage" || measured) numbers.append(" ", make("span", "nowrap", `\u00b7 ${name} ${value}`));
    }
    const badges = make("span", "badges", badge("sender", row[SENDER], data.senders[row[SENDER]]), " ",
      badge("verdict", row[VERDICT], data.verdicts[row[VERDICT]]));
    if (data.says[row[PAYLOAD]]) badges.append(" ", badge("says", row[PAYLOAD], data.says[row[PAYLOAD]]));
    const of = data.attacks > 1 ? [make("span", "of", cell.attack), " "] : [];
    const about = make("span", "about", badges, " ", make("span", "cell", cell.name), " ", ...of, numbers);
    const summary = make("summary", "", about, " ", make("span", "said", pieces(row, number, words)));
    const details = make("details", "", summary);
    // The rest is made when it is asked for.
    details.addEventListener("toggle", () => {
      if (details.open && details.children.length === 1) details.append(more(row, cell, facts));
    });
    return make("li", "row", details);
  }

  function more(row, cell, facts) {
    const [name, question] = data.items[row[ITEM]];
    const values = [["attack", cell.attack], ...(cell.payload ? [["payload", cell.payload]] : []), ["cell", cell.id], ...facts];
    const made = make("div", "more");
    if (question) made.append(make("p", "question", `\u201c${question}\u201d`));
    made.append(make("dl", "making", ...values.flatMap(([about, value]) => [make("dt", "", about), make("dd", "", value)])));
    const same = make("button", "same", "All answers to this item");
    same.type = "button";
    same.setAttribute("aria-label", `All answers to the item ${name}`);
    same.addEventListener("click", () => { item = row[ITEM]; renew(); list.focus(); });
    made.append(same);
    return made;
  }

  // --- the page ---

  function show() {
    const pages = Math.max(1, Math.ceil(shown.length / PER_PAGE));
    page = Math.min(Math.max(0, page), pages - 1);
    const words = field("q").value.toLowerCase().split(/\s+/).filter(Boolean);
    const numbers = shown.slice(page * PER_PAGE, (page + 1) * PER_PAGE);
    list.replaceChildren(...numbers.map((number) => element(number, words)));
    list.start = page * PER_PAGE + 1;
    const all = data.rows.length.toLocaleString("en");
    status.textContent = shown.length
      ? `${shown.length.toLocaleString("en")} of ${all} completions match.`
      : `None of ${all} completions matches. Take a filter away.`;
    for (const navigation of navigations) {
      navigation.hidden = pages === 1;
      navigation.querySelector(".page").textContent = `page ${(page + 1).toLocaleString("en")} of ${pages.toLocaleString("en")}`;
      navigation.querySelector(".back").disabled = page === 0;
      navigation.querySelector(".next").disabled = page === pages - 1;
    }
    only.hidden = item === null;
    if (item !== null) only.textContent = `Only the item ${data.items[item][0]} \u00d7`;
  }

  function turn(to) {
    page = to;
    show();
    remember();
  }

  function renew() {
    page = 0;
    filter();
    show();
    remember();
  }

  function remember() {
    const state = new URLSearchParams();
    for (const name of names) if (field(name).value) state.set(name, field(name).value);
    if (item !== null) state.set("item", data.items[item][0]);
    if (page) state.set("page", String(page + 1));
    const fragment = state.toString();
    try { history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search); } catch { /* the view is right all the same */ }
  }

  function restore() {
    const fragment = location.hash.slice(1);
    const state = new URLSearchParams(fragment.includes("=") ? fragment : "");
    for (const name of names) {
      const value = state.get(name) ?? "";
      const known = !field(name).options || [...field(name).options].some((option) => option.value === value);
      field(name).value = known ? value : "";
    }
    const place = data.items.findIndex(([name]) => name === state.get("item"));
    item = place < 0 ? null : place;
    page = (Number.parseInt(state.get("page") ?? "", 10) || 1) - 1;
    filter();
    show();
  }

  let waiting = 0;
  form.addEventListener("input", (event) => {
    clearTimeout(waiting);
    if (event.target.name === "q") waiting = setTimeout(renew, 120);
    else renew();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  field("reset").addEventListener("click", () => {
    for (const name of names) field(name).value = "";
    item = null;
    renew();
  });
  only.addEventListener("click", () => { item = null; renew(); field("q").focus(); });
  navigations.forEach((navigation, place) => {
    for (const [name, step] of [["back", -1], ["next", 1]]) {
      navigation.querySelector(`.${name}`).addEventListener("click", () => {
        turn(page + step);
        if (place) { list.scrollIntoView(); list.focus({ preventScroll: true }); }
      });
    }
  });
  // Arrow keys work from a completion that has the focus, and nowhere else.
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.target.tagName !== "SUMMARY" || event.altKey || event.ctrlKey || event.metaKey) return;
    const rows = [...list.querySelectorAll("summary")];
    const next = rows[rows.indexOf(event.target) + step];
    event.preventDefault();
    if (next) next.focus();
    else if (step > 0 && (page + 1) * PER_PAGE < shown.length) { turn(page + 1); list.querySelector("summary").focus(); }
    else if (step < 0 && page > 0) { turn(page - 1); [...list.querySelectorAll("summary")].at(-1).focus(); }
  });
  addEventListener("hashchange", () => { if (location.hash !== "#list") restore(); });
  for (const each of document.querySelectorAll(".with-script")) each.hidden = false;
  document.getElementById("without-script").hidden = true;
  form.hidden = false;
  restore();
})();
