"use strict";
// Texts are shown when they are asked for; all else the page can do without this script.
const all = (what, within = document) => [...within.querySelectorAll(what)];
const one = (what, within = document) => within.querySelector(what);

// -- the data: compressed in the page, opened once ---------------------------------------------------
let opened;
function data() {
  opened ??= (async () => {
    const bytes = Uint8Array.from(atob(one("#data").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  })();
  return opened;
}
const textOf = (it, number) => it.texts[number].map((line) => it.lines[line]).join("\n");

async function fill(pre) {
  if (pre.dataset.filled) return;
  pre.dataset.filled = "yes";
  try {
    pre.textContent = textOf(await data(), Number(pre.dataset.text));
  } catch (error) {
    pre.textContent = `This browser cannot open the texts of the page: ${error.message}`;
  }
}

// -- what a stage has changed: the shortest edit from one list of line numbers to another ---------------
function edits(before, after) {
  let start = 0, endB = before.length, endA = after.length;
  while (start < endB && start < endA && before[start] === after[start]) start++;
  while (endB > start && endA > start && before[endB - 1] === after[endA - 1]) endB--, endA--;
  const a = before.slice(start, endB), b = after.slice(start, endA), most = Math.min(a.length + b.length, 2500);
  const trace = [];
  let v = new Map([[1, 0]]), done = false;
  for (let d = 0; d <= most && !done; d++) {
    trace.push(new Map(v));
    for (let k = -d; k <= d; k += 2) {
      let x = k === -d || (k !== d && (v.get(k - 1) ?? -1) < (v.get(k + 1) ?? -1)) ? v.get(k + 1) ?? 0 : (v.get(k - 1) ?? 0) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      v.set(k, x);
      if (x >= a.length && x - k >= b.length) { done = true; break; }
    }
  }
  const middle = [];
  if (!done) {
    for (const line of a) middle.push(["-", line]);
    for (const line of b) middle.push(["+", line]);
  } else {
    let x = a.length, y = b.length;
    for (let d = trace.length - 1; d >= 0; d--) {
      const w = trace[d], k = x - y;
      const from = k === -d || (k !== d && (w.get(k - 1) ?? -1) < (w.get(k + 1) ?? -1)) ? k + 1 : k - 1;
      const px = w.get(from) ?? 0, py = px - from;
      while (x > px && y > py && x > 0 && y > 0) middle.push([" ", a[--x]]), y--;
      if (d > 0) x > px ? middle.push(["-", a[--x]]) : middle.push(["+", b[--y]]);
    }
    middle.reverse();
  }
  const same = (lines) => lines.map((line) => [" ", line]);
  return [...same(before.slice(0, start)), ...middle, ...same(before.slice(endB))];
}

function showEdits(pre, it, before, after) {
  const found = edits(it.texts[before], it.texts[after]), near = new Set();
  found.forEach(([kind], at) => { if (kind !== " ") for (let n = at - 2; n <= at + 2; n++) near.add(n); });
  pre.textContent = near.size ? "" : "no change";
  let skipped = 0;
  const gap = () => { if (skipped) add("gap", `⋯ ${skipped} lines as they were`); skipped = 0; };
  const add = (name, text) => { const span = document.createElement("span"); span.className = name; span.textContent = `${text}\n`; pre.append(span); };
  found.forEach(([kind, line], at) => {
    if (!near.has(at)) { skipped++; return; }
    gap();
    add(kind === "+" ? "added" : kind === "-" ? "removed" : "", `${kind} ${it.lines[line]}`);
  });
  if (near.size) gap();
}

async function showStage(stage, view) {
  const it = await data(), pre = one("pre", stage), { before, after } = stage.dataset;
  all("[data-view]", stage).forEach((button) => button.setAttribute("aria-pressed", button.dataset.view === view));
  if (view === "diff") showEdits(pre, it, Number(before), Number(after));
  else pre.textContent = textOf(it, Number(view === "before" ? before : after));
}
for (const stage of all("details.stage")) {
  const without = stage.dataset.before === "";
  if (without) all('[data-view="diff"], [data-view="before"]', stage).forEach((button) => { button.hidden = true; });
  all("[data-view]", stage).forEach((button) => button.addEventListener("click", () => showStage(stage, button.dataset.view)));
}

document.addEventListener("toggle", (event) => {
  const details = event.target;
  if (!details.open) return;
  if (details.matches(".stage")) { if (!one("[aria-pressed=true]", details)) showStage(details, details.dataset.before === "" ? "after" : "diff"); }
  else if (details.matches(".text, .step")) all("details.text[open] > pre[data-text]", details.parentElement).filter((pre) => details.contains(pre)).forEach(fill);
}, true);

// -- going to a place opens what it is in --------------------------------------------------------------
function goTo(id) {
  const place = document.getElementById(decodeURIComponent(id));
  if (!place) return;
  for (let at = place; at; at = at.parentElement) if (at.matches("details")) at.open = true;
  requestAnimationFrame(() => {
    place.scrollIntoView({ block: place.matches("tr") ? "center" : "start" });
    (place.matches("details") ? one("summary", place) : place).focus?.({ preventScroll: true });
  });
}
addEventListener("hashchange", () => goTo(location.hash.slice(1)));
document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="#"]');
  if (link && link.hash === location.hash) goTo(link.hash.slice(1));
});
if (location.hash) goTo(location.hash.slice(1));

// -- finding -------------------------------------------------------------------------------------------
const input = one("#find"), list = one("#found"), count = one("#count");
let places;
const words = (element) => (element.matches("details") ? `${one("summary", element).innerText} ${one(".lines", element)?.textContent ?? ""}` : element.textContent).replace(/\s+/g, " ").trim();
function find() {
  places ??= all("[data-find]").map((element, at) => {
    if (!element.id) element.id = `found-${at}`;
    const piece = one("h2", element.closest(".piece") ?? document)?.textContent.replace(/\s+/g, " ").trim() ?? "";
    const text = element.matches("details") ? all("summary span", element).map((s) => s.textContent.trim()).join("  ") : words(element);
    const lines = element.matches("details") ? one(".lines", element)?.textContent ?? "" : element.matches(".source tr") ? element.id : "";
    return { id: element.id, text, piece, all: `${text} ${lines}`.toLowerCase() };
  });
  const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = wanted.length ? places.filter((place) => wanted.every((word) => place.all.includes(word))) : [];
  list.replaceChildren(...hits.slice(0, 60).map((place) => {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = `#${place.id}`;
    link.textContent = place.text.replace(/\s+/g, " ");
    item.append(link);
    return item;
  }));
  count.textContent = wanted.length ? `${hits.length} place${hits.length === 1 ? "" : "s"}${hits.length > 60 ? ", the first 60 shown" : ""}` : "";
}
input.addEventListener("input", find);
input.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { input.value = ""; find(); }
  if (event.key === "ArrowDown" || event.key === "Enter") { const first = one("a", list); if (first) { event.preventDefault(); first.focus(); } }
});
list.addEventListener("keydown", (event) => {
  const item = event.target.closest("li");
  const next = event.key === "ArrowDown" ? item?.nextElementSibling : event.key === "ArrowUp" ? item?.previousElementSibling : null;
  if (next) { event.preventDefault(); one("a", next).focus(); }
  if (event.key === "Escape" || (event.key === "ArrowUp" && !next)) input.focus();
});
list.addEventListener("click", () => setTimeout(() => { input.value = ""; find(); }));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.matches("input")) { event.preventDefault(); input.focus(); }
});

// -- the order of steps --------------------------------------------------------------------------------
for (const part of all(".part")) {
  const sorting = one(".sorting", part), rows = one(".steps", part);
  if (!sorting) continue;
  sorting.hidden = false;
  const byTime = all(".step", rows), byRun = [...byTime].sort((a, b) => a.dataset.at - b.dataset.at);
  all("button", sorting).forEach((button) => button.addEventListener("click", () => {
    all("button", sorting).forEach((other) => other.setAttribute("aria-pressed", other === button));
    rows.append(...(button.dataset.order === "run" ? byRun : byTime));
  }));
}

// -- reading the memory of a step ----------------------------------------------------------------------
const inBytes = (n) => { let at = 0; while (n >= 1024 && at < 4) { n /= 1024; at++; } return at ? `${n.toFixed(n < 100 ? 1 : 0)} ${" KMGT"[at]}iB` : `${n} B`; };
for (const figure of all(".memory")) {
  const reader = one(".reader", figure), range = one("input", reader), now = one(".now", figure);
  reader.hidden = false;
  const read = async () => {
    const it = await data(), memory = it.pieces[figure.dataset.piece].memory, at = Number(range.value);
    const x = ((at + 0.5) / memory.held.length) * 1000;
    now.setAttribute("x1", x); now.setAttribute("x2", x); now.style.opacity = 1;
    const largest = memory.tensors.find((t) => t.first <= at && at <= t.last);
    one("output", reader).textContent = `${at}: ${inBytes(memory.held[at])}` + (largest ? `, the largest ${inBytes(largest.bytes)} of ${largest.made_by}` : "");
  };
  range.addEventListener("input", read);
  one("svg", figure).addEventListener("pointermove", (event) => {
    const box = one("svg", figure).getBoundingClientRect();
    range.value = Math.floor(((event.clientX - box.left) / box.width) * (Number(range.max) + 1));
    read();
  });
}

// -- light, dark, print --------------------------------------------------------------------------------
one("#theme").addEventListener("click", () => {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
let closed = [];
addEventListener("beforeprint", () => {
  closed = all("details.part:not([open]):not([id$=stages]), details.answer:not([open])");
  closed.forEach((details) => { details.open = true; });
});
addEventListener("afterprint", () => { closed.forEach((details) => { details.open = false; }); closed = []; });
