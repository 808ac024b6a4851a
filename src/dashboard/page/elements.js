// Elements of the page, texts for people, and reads that repeat. Every text from the server becomes a text node, never
// markup.

export const $ = (id) => document.getElementById(id);
const address = new URL(location.href);

// A longer text is one that opens.
const LONG = 280;

export function element(name, options = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined || value === false) continue;
    if (key === "class") node.className = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => ![undefined, null, false, ""].includes(child)));
  return node;
}

const keyed = (place) => new Map([...place.querySelectorAll("[data-key]")].map((it) => [it.dataset.key, it]));

// Replaces only the children that differ, so that a selection, the focus or an open text is not lost at every poll.
export function show(id, ...children) {
  const place = $(id);
  const next = element("div", {}, ...children);
  const known = keyed(place);
  for (const [key, it] of keyed(next)) if (it.localName === "details" && known.has(key)) it.open = known.get(key).open;
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const [before, after] = [[...place.childNodes], [...next.childNodes]];
  after.forEach((node, index) => {
    if (index >= before.length) place.append(node);
    else if (!before[index].isEqualNode(node)) before[index].replaceWith(node);
  });
  for (const node of before.slice(after.length)) node.remove();
  if (focused !== undefined && !place.contains(document.activeElement)) keyed(place).get(focused)?.focus();
}

// Sets the text of a live region, which assistive technology reads aloud, only if it differs.
export function say(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

// A column has a name and the cell of a row: a text, a node, or [text, class]; and a width, unless it shares the rest.
export function table(caption, columns, rows) {
  const classes = (...names) => names.filter(Boolean).join(" ") || undefined;
  const head = ({ name, number, width }) => element("th", { scope: "col", class: classes(number && "number", width) }, name);
  const cell = (row) => ({ name, cell, number, code }) => {
    const value = cell(row);
    const [content = "", tone] = Array.isArray(value) ? value : [value];
    const inner = content instanceof Node ? content : element("span", { class: tone }, ...(code ? breakable(String(content)) : [String(content)]));
    return element("td", { "data-empty": content === "", "data-column": name, class: classes(number && "number", code && "code") }, inner);
  };
  return element("table", {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...columns.map(head))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...columns.map(cell(row))))));
}

// Returns the parts of a name. A narrow screen breaks it after a point or a slash, and not within a word.
export const breakable = (name) => name.split(/(?<=[./@])/).flatMap((part, index) => (index === 0 ? [part] : [element("wbr"), part]));

// Returns a text; a long one opens. The key is unique within the part of the page.
export function long(text, key) {
  if (text.length <= LONG) return element("span", {}, text);
  const begin = element("summary", { "data-key": `begin ${key}` }, element("span", {}, `${text.slice(0, LONG)}…`));
  return element("details", { class: "long", "data-key": key }, begin, element("span", {}, text));
}

// Returns a bar of [count, class]. Its numbers are beside it as text.
export function bar(...parts) {
  const node = element("div", { class: "bar", "aria-hidden": "true" });
  for (const [count, tone] of parts.filter(([count]) => count > 0)) {
    const part = element("span", { class: tone });
    part.style.flexGrow = count;
    node.append(part);
  }
  return node;
}

export const none = (text) => element("p", { class: "quiet" }, text);
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const counted = (counts) => counts.filter(([count]) => count > 0).map(([count, what]) => `${count} ${what}`).join(", ");

// Returns the two largest units of a duration.
export function duration(seconds) {
  const parts = [[86400, "d", Infinity], [3600, "h", 24], [60, "min", 60], [1, "s", 60]].map(([size, unit, limit]) => [Math.floor(seconds / size) % limit, unit]);
  const first = parts.findIndex(([count]) => count > 0);
  return first < 0 ? "0 s" : counted(parts.slice(first, first + 2)).replace(",", "");
}

// Returns a time in UTC, as kubectl prints it; with the day, unless it is today.
export function clock(time) {
  const [day, second] = new Date(time).toISOString().split("T");
  return day === new Date().toISOString().slice(0, 10) ? second.slice(0, 8) : `${day} ${second.slice(0, 5)}`;
}

export const remembered = (name) => address.searchParams.get(name) ?? undefined;

// Keeps a parameter in the page's address, so that a link or a reload shows the same.
export function remember(name, value) {
  address.hash = location.hash;
  if (value) address.searchParams.set(name, value);
  else address.searchParams.delete(name);
  history.replaceState(null, "", address);
}

export async function json(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(15000) });
  if (!response.ok) throw new Error((await response.text()).trim() || `HTTP ${response.status}`);
  return response.json();
}

// Runs a task again and again, but not while the page is hidden.
export async function every(pause, task) {
  for (;;) {
    if (document.visibilityState === "visible") await task();
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}
