// The tab Discovery follows one authority by server-sent events.

import { $, element, none, plural, remember, remembered, say, show, table } from "./elements.js";

const CHANGES = 100;
const SHOWN = 1000;

let followed;

function follow(authority, token) {
  stop();
  const endpoints = new Map();
  const source = new EventSource(`stream?${new URLSearchParams({ authority, token })}`);
  const state = (text) => say("followed", `${authority}: ${text}`);
  // The kinds of streams of the open response that have sent a message, and those that were refused for good.
  let began = new Set();
  let refused = new Map();
  followed = source;
  $("stop").disabled = false;
  $("changes").replaceChildren();
  state("connecting");
  source.onopen = () => {
    endpoints.clear();
    show("endpoints");
    show("profile");
    began = new Set();
    refused = new Map();
    state("connected, no message yet");
  };
  source.onerror = () => {
    const isOver = source.readyState === EventSource.CLOSED;
    state(isOver ? "the request was refused, see linkerd-operator endpoints" : "the connection was lost, connecting again");
  };
  source.addEventListener("refused", (event) => {
    const { of, message, temporary } = JSON.parse(event.data);
    note(`${of}: ${message}`);
    if (!temporary) refused.set(of, message);
    if (began.size === 0) state(message);
    if (refused.size < 2) return;
    source.close();
    state(refused.get("endpoints"));
  });
  source.addEventListener("endpoints", (event) => {
    const { total, added, changed, removed, none } = JSON.parse(event.data);
    for (const name of removed) endpoints.delete(name);
    for (const it of [...added, ...changed]) {
      if (endpoints.size < SHOWN || endpoints.has(socket(it))) endpoints.set(socket(it), it);
    }
    if (none) endpoints.clear();
    if (began.has("endpoints")) noteAll([
      ...removed.map((name) => `removed ${name}`),
      ...changed.map((it) => `changed ${socket(it)} ${it.pod}: ${it.differs.join(", ")}`),
      ...added.map((it) => `added ${socket(it)} ${it.pod}`),
      ...(none ? [withoutEndpoints(none)] : []),
    ]);
    began.add("endpoints");
    state(none ? withoutEndpoints(none) : plural(total, "endpoint"));
    showEndpoints([...endpoints.values()], total);
  });
  source.addEventListener("profile", (event) => {
    const { profile } = JSON.parse(event.data);
    if ($("profile").firstChild === null) {
      const text = element("pre", { tabindex: "0", role: "region", "aria-label": "Profile as JSON" });
      show("profile", element("h3", {}, "Profile"), text);
    }
    $("profile").querySelector("pre").textContent = JSON.stringify(profile, null, 2);
    if (began.has("profile")) note("the profile changed");
    began.add("profile");
  });
}

function stop() {
  followed?.close();
  followed = undefined;
  $("stop").disabled = true;
  show("endpoints");
  show("profile");
  say("followed", "");
}

const withoutEndpoints = ({ exists }) => (exists ? "the Service has no endpoints" : "the Service does not exist");

function noteAll(texts) {
  for (const text of texts.slice(-CHANGES)) note(text);
}

function note(text) {
  const list = $("changes");
  $("history").hidden = false;
  list.prepend(element("li", {}, `${new Date().toISOString().slice(11, 23)} ${text}`));
  while (list.childElementCount > CHANGES) list.lastChild.remove();
}

const socket = ({ ip, port }) => (ip.includes(":") ? `[${ip}]:${port}` : `${ip}:${port}`);

function showEndpoints(rows, total) {
  rows.sort((one, other) => one.ip.localeCompare(other.ip, undefined, { numeric: true }) || one.port - other.port);
  const more = total - rows.length;
  show("endpoints", rows.length === 0 ? none("No endpoints.") : table(`${plural(total, "endpoint")}${more > 0 ? `, ${more} not listed` : ""}`, [
    { name: "Address", width: "wide", code: true, cell: socket },
    { name: "Pod", code: true, cell: (it) => it.pod },
    { name: "Service", code: true, cell: (it) => (it.cluster ? `${it.service}@${it.cluster}` : it.service) },
    { name: "Weight", width: "tiny", number: true, cell: (it) => it.weight },
    { name: "Protocol", width: "tiny", cell: (it) => it.protocol },
    { name: "Identity", code: true, cell: (it) => it.tls_identity ?? ["none", "quiet"] },
  ], rows));
}

$("follow").addEventListener("submit", (event) => {
  event.preventDefault();
  const [authority, token] = [$("authority").value.trim(), $("token").value.trim()];
  remember("authority", authority);
  remember("token", token);
  follow(authority, token);
});
$("stop").addEventListener("click", () => {
  remember("authority");
  remember("token");
  stop();
});

export function begin() {
  $("authority").value = remembered("authority") ?? "";
  $("token").value = remembered("token") ?? "";
  if ($("authority").value) follow($("authority").value, $("token").value);
}

export function disable() {
  for (const control of $("follow").elements) control.disabled = true;
  say("followed", "This process does not serve discovery: --enable-destination=false.");
}
