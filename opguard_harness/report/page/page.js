"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const pane = document.getElementById("window");
  if (!pane) return;
  const SIDES = ["reference", "suspect"];
  const HOW = { equal: "equal", different: "differs", permuted: "same elements, other order", cast: "same values, other type",
    layout: "same elements, other layout", unknown: "not looked at", alone: "one side only" };
  const rows = Array.from(pane.querySelectorAll("tr.r"));
  const openers = [];

  // Everything that a program controls becomes a text node; nothing is ever parsed as HTML.
  const make = (name, className, ...children) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    for (const child of children) if (child !== null && child !== undefined) node.append(child);
    return node;
  };
  const tensor = (slot) => `${slot.dtype}[${slot.shape.split(",").join(", ")}]`;

  const slotCell = (slot) => slot === null ? make("td", "none", "not there")
    : make("td", "", tensor(slot), document.createElement("br"), make("code", "digest", slot.digest || slot.status));

  const slots = (row) => {
    const body = make("tbody");
    const two = row.reference && row.suspect && row.reference.operator !== row.suspect.operator;
    for (const pair of row.slots) {
      const differs = ["different", "permuted", "alone"].includes(pair.how);
      const loose = two && differs && pair.direction === "in";
      const first = pair.suspect || pair.reference;
      const other = pair.reference && pair.suspect && pair.reference.slot !== pair.suspect.slot ? ` / ${pair.reference.slot}` : "";
      const label = make("th", "", make("code", "", first.slot + other), first.tensor ? make("span", "sub", first.tensor) : null);
      label.scope = "row";
      const line = make("tr", differs && !loose ? "different" : "", label,
        slotCell(pair.reference), slotCell(pair.suspect), loose ? make("td", "how unknown", "two different operators read it: not to be compared")
          : make("td", `how ${pair.how}`, HOW[pair.how] || pair.how));
      body.append(line);
    }
    const head = make("tr", "", ...["tensor", "reference", "suspect", "bytes"].map((name) => {
      const cell = make("th", "", name);
      cell.scope = "col";
      return cell;
    }));
    const more = row.slots_total - row.slots.length;
    return [make("div", "scroll", make("table", "tensors", make("thead", "", head), body)), more > 0 ? make("p", "extra", `${more} more are in report.json.`) : null];
  };

  const source = (frame) => {
    if (!frame) return make("p", "none", "No place in the source is recorded.");
    const block = make("pre", "source");
    block.tabIndex = 0;
    const lines = frame.source === null ? [{ number: frame.line, text: frame.text, mark: [0, frame.text.length] }] : data.sources[frame.source].lines;
    const width = String(lines[lines.length - 1].number).length;
    for (const line of lines) {
      const parts = line.mark === null ? [line.text]
        : [line.text.slice(0, line.mark[0]), make("mark", "", line.text.slice(line.mark[0], line.mark[1])), line.text.slice(line.mark[1])];
      block.append(make("span", line.mark ? "line hit" : "line", make("span", "number", String(line.number).padStart(width)), ...parts, "\n"));
    }
    return block;
  };

  const stack = (event) => {
    if (event.stack === null) return null;
    const list = make("ol", "stack");
    for (const number of data.stacks[event.stack]) {
      const frame = data.frames[number];
      if (!frame.user && frame.file.endsWith("torch/nn/modules/module.py") && frame.function.endsWith("call_impl")) continue;
      list.append(make("li", frame.user ? "user" : "library",
        make("span", "place", make("span", "file", `${frame.file}:${frame.line}`), ` in ${frame.function}`), make("code", "", frame.text)));
    }
    return make("div", "", make("h4", "", "Stack, innermost last"), list);
  };

  const side = (row, name) => {
    const event = row[name];
    const title = make("h3", "", make("span", `side ${name}`, name));
    if (!event) return make("article", `card ${name}`, title, make("p", "none", "Nothing on this side."));
    title.append(" ", make("code", "", event.operator));
    const frame = event.frame === null ? null : data.frames[event.frame];
    const extra = make("p", "extra");
    for (const [label, text] of [["arguments", event.args], ["module", event.module], ["autograd", event.node], ["thread", event.thread]]) {
      if (text) extra.append(`${label} `, make("code", "", text), " ");
    }
    return make("article", `card ${name}`, title,
      frame ? make("p", "place", make("span", "file", `${frame.file}:${frame.line}`), ` in ${frame.function}`) : null,
      source(frame), extra, make("p", "extra", make("code", "ev", event.id)), stack(event));
  };

  const build = (at) => {
    const row = data.rows[at];
    const cell = make("td", "", ...slots(row), make("div", "pair", ...SIDES.map((name) => side(row, name))));
    cell.colSpan = 4;
    const inside = make("tr", "inside", cell);
    inside.id = `d${at}`;
    rows[at].after(inside);
    return inside;
  };

  const inner = (at) => document.getElementById(`d${at}`);
  const toggle = (at, open) => {
    const found = inner(at);
    const wanted = open === undefined ? !found || found.hidden : open;
    if (wanted) (found || build(at)).hidden = false;
    else if (found) found.hidden = true;
    openers[at].setAttribute("aria-expanded", String(wanted));
    if (wanted) openers[at].setAttribute("aria-controls", `d${at}`);
  };

  let current = Math.max(0, rows.findIndex((row) => row.classList.contains("pivot")));
  const shown = (at) => rows[at].offsetParent !== null;
  // Only the pane moves; the page stays where its reader is.
  const centre = (at) => { pane.scrollTop = rows[at].offsetTop - pane.clientHeight / 2 + rows[at].offsetHeight / 2; };
  const go = (at, focus = true) => {
    openers[current].tabIndex = -1;
    current = at;
    openers[at].tabIndex = 0;
    if (focus) {
      openers[at].focus({ preventScroll: true });
      const top = rows[at].offsetTop;
      if (top - 48 < pane.scrollTop || top + rows[at].offsetHeight > pane.scrollTop + pane.clientHeight) centre(at);
    }
  };
  const find = (direction, wanted) => {
    for (let at = current + direction; at >= 0 && at < rows.length; at += direction) if (shown(at) && wanted(at)) return go(at);
  };
  const differs = (at) => rows[at].classList.contains("differ") || rows[at].classList.contains("alone");
  const pivot = () => {
    const at = rows.findIndex((row) => row.classList.contains("pivot"));
    if (at < 0) return;
    rows[at].hidden = false;
    go(at);
    centre(at);
    toggle(at, true);
  };

  rows.forEach((row, at) => {
    const cell = row.cells[0];
    const opener = make("button", "opener");
    opener.type = "button";
    opener.tabIndex = -1;
    opener.setAttribute("aria-expanded", "false");
    const event = data.rows[at].suspect || data.rows[at].reference;
    opener.append(...Array.from(cell.children).filter((child) => !child.classList.contains("tagged")));
    opener.append(make("span", "hidden", `, ${event.operator}: show tensors, sources and stacks`));
    cell.prepend(opener);
    openers.push(opener);
    row.addEventListener("click", () => {
      if (String(window.getSelection())) return;
      go(at, false);
      toggle(at);
    });
  });
  pane.classList.add("live");
  pane.removeAttribute("tabindex");
  openers[current].tabIndex = 0;

  const tools = document.getElementById("tools");
  const status = make("span", "muted");
  status.setAttribute("role", "status");
  const button = (text, action) => {
    const node = make("button", "", text);
    node.type = "button";
    node.addEventListener("click", action);
    tools.append(node);
    return node;
  };
  const count = () => {
    const total = rows.filter((row, at) => shown(at)).length;
    status.textContent = total === rows.length ? `${total} rows` : `${total} of ${rows.length} rows`;
    if (!shown(current)) {
      const at = rows.findIndex((row, index) => shown(index));
      if (at >= 0) go(at, false);
    }
  };
  button("First difference", pivot);
  button("Previous difference", () => find(-1, differs));
  button("Next difference", () => find(1, differs));
  const only = button("Only what differs", () => {
    const on = only.getAttribute("aria-pressed") !== "true";
    only.setAttribute("aria-pressed", String(on));
    pane.classList.toggle("only", on);
    rows.forEach((row, at) => { if (on && !differs(at)) toggle(at, false); });
    count();
  });
  only.setAttribute("aria-pressed", "false");
  const search = make("input", "");
  search.type = "search";
  search.placeholder = "Operator, file or module";
  search.setAttribute("aria-label", "Show rows with this operator, file or module");
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row, at) => {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (row.hidden) toggle(at, false);
    });
    count();
  });
  const keys = make("p", "extra keys", "In the list: ");
  for (const [name, what] of [["\u2191 \u2193", "row"], ["Enter", "open or close"], ["n p", "next or previous difference"], ["Home", "first difference"]]) {
    keys.append(make("kbd", "", name), ` ${what}  `);
  }
  tools.append(search, status, keys);
  tools.hidden = false;
  count();

  pane.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.classList.contains("opener")) return;
    const acts = {
      ArrowDown: () => find(1, () => true), j: () => find(1, () => true), ArrowUp: () => find(-1, () => true), k: () => find(-1, () => true),
      n: () => find(1, differs), p: () => find(-1, differs), Home: pivot, Escape: () => toggle(current, false),
    };
    if (!Object.hasOwn(acts, event.key)) return;
    event.preventDefault();
    acts[event.key]();
  });
  document.getElementById("map").addEventListener("click", (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const at = Math.min(rows.length - 1, Math.max(0, Math.floor(rows.length * (event.clientX - box.left) / box.width)));
    if (shown(at)) {
      go(at);
      centre(at);
    }
  });
  const first = rows.findIndex((row) => row.classList.contains("pivot"));
  if (first >= 0) {
    toggle(first, true);
    centre(first);
  }
})();
