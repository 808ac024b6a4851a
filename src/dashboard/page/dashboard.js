// The dashboard's script. It reads overview.json every few seconds, config.json for the chosen LinkerdConfig, and follows
// one authority by server-sent events. Every text from the server becomes a text node, never markup. The authority and
// the LinkerdConfig are parameters of the page's address, so that a link or a reload shows the same.

const OVERVIEW_EVERY = 2000;
const CONFIG_EVERY = 5000;
const CHANGES = 100;
const SHOWN = 1000;

const $ = (id) => document.getElementById(id);
const address = new URL(location.href);

// --- elements -------------------------------------------------------------------------------------------------------

function element(name, options = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined) continue;
    if (key === "class") node.className = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
}

// Replaces the content only if it differs, so that a selection or the focus is not lost at every poll.
function show(id, ...children) {
  const next = element("div", {}, ...children);
  const place = $(id);
  const [before, after] = [place.childNodes, next.childNodes];
  if (before.length === after.length && [...before].every((node, index) => node.isEqualNode(after[index]))) return;
  const focused = place.contains(document.activeElement) ? document.activeElement.textContent : undefined;
  place.replaceChildren(...next.childNodes);
  if (focused !== undefined) [...place.querySelectorAll("button")].find((it) => it.textContent === focused)?.focus();
}

// A column has a name and the cell of a row: a text, a node, or [text, class].
function table(caption, columns, rows) {
  const head = columns.map(({ name, number }) => element("th", { scope: "col", class: number && "number" }, name));
  const cell = (row) => ({ name, cell, number, code }) => {
    const value = cell(row);
    const [content = "", tone] = Array.isArray(value) ? value : [value];
    const inner = content instanceof Node ? content : element("span", { class: tone }, String(content));
    const isEmpty = content === "" ? "" : undefined;
    return element("td", { "data-empty": isEmpty, "data-column": name, class: [number && "number", code && "code"].filter(Boolean).join(" ") }, inner);
  };
  return element("table", {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...columns.map(cell(row))))));
}

// Sets the text of a live region, which assistive technology reads aloud, only if it differs.
function say(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

const none = (text) => element("p", { class: "quiet" }, text);
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const [unit, size] = units.find(([, size]) => seconds >= size) ?? units[3];
  return `${Math.floor(seconds / size)} ${unit}`;
}

// --- polling --------------------------------------------------------------------------------------------------------

async function json(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(15000) });
  if (!response.ok) throw new Error((await response.text()).trim() || `HTTP ${response.status}`);
  return response.json();
}

// Runs a task again and again, but not while the page is hidden.
async function every(pause, task) {
  for (;;) {
    if (document.visibilityState === "visible") await task();
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

// --- overview -------------------------------------------------------------------------------------------------------

const WATCH_TONES = { current: "good", outdated: "bad", "not listed yet": "wait", "not served": "quiet" };

function showOverview(overview) {
  $("identity").textContent = `${overview.identity}, version ${overview.version} (${overview.commit.slice(0, 12)})`;
  show("ready", overview.ready ? element("strong", { class: "good" }, "Ready") : element("strong", { class: "bad" }, "Not ready"));
  show("waiting", ...overview.waitingFor.map((text) => element("li", { class: "wait" }, text)));
  show("leases", overview.leases.length === 0 ? none("No job that is enabled needs a Lease.") : table("Leases, whose holders write", [
    { name: "Lease", code: true, cell: (it) => `${it.namespace}/${it.name}` },
    { name: "Holder", code: true, cell: (it) => it.holder || ["none", "wait"] },
    { name: "This replica", cell: (it) => (it.leads ? ["leads", "good"] : ["waits", "quiet"]) },
    { name: "Problem", cell: (it) => [it.problem, "bad"] },
  ], overview.leases));
  show("certificates", overview.certificate === undefined ? none("No webhook is enabled.") : table("Certificates in use", [
    { name: "For", cell: (it) => it.name },
    { name: "Expires", cell: (it) => expiry(it.notAfter, overview.now) },
  ], [overview.certificate]));
  show("cluster", table("Watched resources", [
    { name: "Resource", code: true, cell: (it) => it.resource },
    { name: "State", cell: (it) => [it.state === "outdated" ? `outdated for ${duration(it.failingSeconds)}` : it.state, WATCH_TONES[it.state]] },
    { name: "Objects", number: true, cell: (it) => it.objects },
    { name: "Problem", cell: (it) => [it.problem, it.state === "not served" ? "quiet" : "bad"] },
  ], overview.watches));
  show("clusters", ...overview.clusters.flatMap((cluster) => [
    element("h3", {}, `Cluster ${cluster.name}`),
    ...cluster.problems.map((problem) => element("p", { class: "bad" }, problem)),
    cluster.namespaces.length === 0 ? none("No proxy needs a namespace of it now.") : table(`Namespaces that proxies need${cluster.moreNamespaces ? `, ${cluster.moreNamespaces} not listed` : ""}`, [
      { name: "Namespace", code: true, cell: (it) => it.name },
      { name: "State", cell: (it) => [it.state, WATCH_TONES[it.state]] },
      { name: "Objects", number: true, cell: (it) => it.objects },
    ], cluster.namespaces),
  ]));
  if (!overview.servesDestination) {
    for (const control of $("follow").elements) control.disabled = true;
    say("followed", "This process does not serve discovery: --enable-destination=false.");
  }
  showConfigs(overview);
}

function expiry(notAfter, now) {
  if (notAfter === undefined) return ["none yet", "bad"];
  const left = (Date.parse(notAfter) - Date.parse(now)) / 1000;
  const date = notAfter.slice(0, 16).replace("T", " ");
  return left <= 0 ? [`expired, ${date} UTC`, "bad"] : [`in ${duration(left)}, ${date} UTC`, left < 7 * 86400 ? "wait" : "good"];
}

// --- LinkerdConfigs -------------------------------------------------------------------------------------------------

// Conditions that exist only while they are True: a problem, and warnings. All others are good if they are True.
const PROBLEMS = ["Stalled"];
const WARNINGS = ["Canary", "ControlPlaneMismatch", "IneffectiveValues", "SuspectBase", "VersionSkew"];
// False while a rollout takes place.
const TAKES_TIME = ["RolloutComplete"];

function tone({ type, status, reason }) {
  // A resource in reserve: another one is in effect.
  if (reason === "Conflicted") return "quiet";
  if (status === "Unknown" || WARNINGS.includes(type)) return "wait";
  if ((status === "True") !== PROBLEMS.includes(type)) return "good";
  return TAKES_TIME.includes(type) ? "wait" : "bad";
}

function condition(it) {
  const state = element("span", { class: tone(it) }, `${it.type} ${it.status}: ${it.reason}`);
  return element("li", {}, state, it.message && `, ${it.message}`);
}

let chosen = address.searchParams.get("config") ?? undefined;

function showConfigs(overview) {
  const { linkerdConfigs: configs, moreLinkerdConfigs: more } = overview;
  if (configs.length === 0) {
    chosen = undefined;
    show("configs", none("There is no LinkerdConfig, or this process does not watch them."));
    show("config");
    show("workloads");
    $("rollout-state").textContent = "Without a LinkerdConfig nothing is rolled out.";
    return;
  }
  chosen ??= (configs.find((it) => it.inEffect) ?? configs[0]).name;
  const choose = (name) => element("button", { type: "button", "aria-pressed": String(name === chosen) }, name);
  show("configs", table(`${plural(configs.length + more, "LinkerdConfig")}${more ? `, ${more} not listed` : ""}`, [
    { name: "Name", cell: (it) => choose(it.name) },
    { name: "ConfigMap", code: true, cell: (it) => it.target },
    { name: "Mode", cell: (it) => it.mode },
    { name: "In effect", cell: (it) => (it.inEffect ? ["yes", "good"] : ["no", "quiet"]) },
    { name: "Conditions", cell: (it) => element("ul", {}, ...it.conditions.map(condition)) },
  ], configs));
}

$("configs").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button === null) return;
  chosen = button.textContent;
  remember("config", chosen);
  for (const it of $("configs").querySelectorAll("button")) it.setAttribute("aria-pressed", String(it === button));
  refreshConfig();
});

const shown = (value) => (value === undefined ? ["none", "quiet"] : JSON.stringify(value));

function showConfig(config) {
  const facts = [
    element("h3", {}, config.name),
    element("p", {}, `${config.reason}: ${config.verdict}`),
    ...[config.controlPlaneMismatch, config.suspectBase, ...(config.warnings ?? [])]
      .filter(Boolean).map((text) => element("p", { class: "wait" }, text)),
    config.drift && element("p", { class: "bad" }, `Drift: ${config.drift.manager} changed ${config.drift.paths.join(", ") || "the document"}`),
    ...config.problems.map((it) => element("p", { class: "bad" }, `${it.path || "the document"}: ${it.reason}`)),
    config.canary && element("p", { class: "wait" }, `Canary ${config.canary.phase ?? "not begun"} in ${config.canary.namespaces.join(", ") || "no namespace"}: ${config.canary.message ?? ""}`),
  ];
  show("config", ...facts, table(`Values that the resource names or that differ; ${plural(config.unmanaged, "other value")} as the installer wrote them`, [
    { name: "Value", code: true, cell: (it) => it.path },
    { name: "From", cell: (it) => it.from },
    { name: "Live", code: true, cell: (it) => shown(it.live) },
    { name: "Effective", code: true, cell: (it) => shown(it.effective) },
    { name: "Change", cell: (it) => (it.changes ? ["would change", "wait"] : ["none", "quiet"]) },
  ], config.values));
  showRollout(config);
}

const DECISION_TONES = { Failed: "bad", Updating: "wait", Pending: "wait", Skipped: "quiet", UpToDate: "good" };

function showRollout({ rollout, workloads, moreWorkloads }) {
  const counts = Object.entries(rollout.workloads).filter(([, count]) => count > 0).map(([what, count]) => `${count} ${what}`);
  $("rollout-state").textContent = [rollout.reason, rollout.message, counts.join(", ")].filter(Boolean).join(". ");
  let place = 0;
  const rows = workloads.map((it) => ({ ...it, place: it.decision === "Pending" ? (place += 1) : undefined }));
  show("workloads", rows.length === 0 ? none("No workload has Pods of the mesh.") : table(
    `${plural(rows.length + moreWorkloads, "workload")}${moreWorkloads ? `, ${moreWorkloads} not listed` : ""}`, [
      { name: "Workload", code: true, cell: (it) => `${it.namespace}/${it.kind}/${it.name}` },
      { name: "Pods", number: true, cell: (it) => `${it.pods.current}/${it.pods.meshed}` },
      { name: "Decision", cell: (it) => [it.place === undefined ? it.decision : `${it.decision}, number ${it.place}`, DECISION_TONES[it.decision] ?? "quiet"] },
      { name: "Why", cell: (it) => [it.reason, it.message].filter(Boolean).join(": ") },
    ], rows));
}

async function refreshConfig() {
  const name = chosen;
  if (name === undefined) return;
  try {
    const config = await json(`config.json?name=${encodeURIComponent(name)}`);
    if (name === chosen) showConfig(config);
  } catch (error) {
    if (name !== chosen) return;
    show("config", element("p", { class: "bad" }, `${name}: ${error.message}`));
    show("workloads");
    $("rollout-state").textContent = "";
  }
}

// --- discovery ------------------------------------------------------------------------------------------------------

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
    { name: "Address", code: true, cell: socket },
    { name: "Pod", code: true, cell: (it) => it.pod },
    { name: "Service", code: true, cell: (it) => (it.cluster ? `${it.service}@${it.cluster}` : it.service) },
    { name: "Weight", number: true, cell: (it) => it.weight },
    { name: "Protocol", cell: (it) => it.protocol },
    { name: "Identity", code: true, cell: (it) => it.tls_identity ?? ["none", "quiet"] },
  ], rows));
}

function remember(name, value) {
  if (value) address.searchParams.set(name, value);
  else address.searchParams.delete(name);
  history.replaceState(null, "", address);
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

// --- begin ----------------------------------------------------------------------------------------------------------

$("authority").value = address.searchParams.get("authority") ?? "";
$("token").value = address.searchParams.get("token") ?? "";
if ($("authority").value) follow($("authority").value, $("token").value);

every(OVERVIEW_EVERY, async () => {
  try {
    const first = chosen === undefined;
    showOverview(await json("overview.json"));
    $("updated").textContent = `updated ${new Date().toLocaleTimeString()}`;
    say("connection", "connected");
    $("connection").className = "";
    if (first) await refreshConfig();
  } catch (error) {
    say("connection", `not reachable: ${error.message}`);
    $("connection").className = "bad";
  }
});
every(CONFIG_EVERY, refreshConfig);
