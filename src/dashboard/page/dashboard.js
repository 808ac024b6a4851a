// The dashboard's script. It reads overview.json every few seconds, and config.json for the chosen LinkerdConfig. The
// server decides what is wrong; the page shows it first.

import { $, bar, breakable, clock, duration, element, every, json, long, none, plural, remember, remembered, say, show, table } from "./elements.js";
import { begin, disable } from "./discovery.js";
import { forgetWorkloads, showWorkloads } from "./namespaces.js";

const OVERVIEW_EVERY = 2000;
const CONFIG_EVERY = 5000;

// --- banner ---------------------------------------------------------------------------------------------------------

const TONES = { done: "good", progressing: "busy", waiting: "wait", problem: "bad" };
const TITLES = { done: "Nothing is wrong", progressing: "In progress", waiting: "Waiting", problem: "Problem" };

const command = (text, key) => element("div", { class: "command" },
  element("code", {}, text),
  element("button", { type: "button", "data-key": `copy ${key}`, "data-copies": true, "aria-label": `Copy ${text}` }, "Copy"));
const about = (it) => [it.subject, it.reason, it.since && `since ${clock(it.since)}`].filter(Boolean).join(" · ");

function showBanner([worst, ...others]) {
  $("banner").className = TONES[worst.attention];
  document.title = `${TITLES[worst.attention]}: linkerd-operator`;
  show("banner-title", element("span", { class: "badge" }, TITLES[worst.attention]), " ", long(worst.title, "title"));
  show("advice",
    about(worst) && element("p", { class: "quiet" }, about(worst)),
    worst.sentence && element("div", { class: "sentence" }, long(worst.sentence, "sentence")),
    worst.next && element("p", { class: "next" }, worst.next),
    worst.command && command(worst.command, "worst"),
    others.length > 0 && element("ul", {}, ...others.map((it, index) => element("li", {},
      element("span", { class: TONES[it.attention] }, `${TITLES[it.attention]}: `),
      long([it.title, it.sentence].filter(Boolean).join(": "), `other ${index}`),
      element("span", { class: "quiet" }, ` ${about(it)}`),
      it.command && command(it.command, index)))));
}

$("advice").addEventListener("click", async ({ target }) => {
  if (target.dataset.copies === undefined) return;
  const code = target.previousElementSibling;
  try {
    await navigator.clipboard.writeText(code.textContent);
    target.textContent = "Copied";
  } catch {
    // Without a secure context or the permission, the command is selected, so that the keyboard copies it.
    getSelection().selectAllChildren(code);
  }
});

// --- tiles ----------------------------------------------------------------------------------------------------------

// The server decides the value, the texts and the tones. A tone is the class of a text; "plain" has no style.
function tile({ name, value, tone, bar: parts = [], lines }) {
  return element("div", { class: "tile" },
    element("h2", {}, name),
    element("p", { class: `value ${tone}` }, value),
    parts.length > 0 && bar(...parts.map((part) => [part.count, part.tone])),
    ...lines.map((line) => element("p", { class: line.tone }, line.text)));
}

// --- overview -------------------------------------------------------------------------------------------------------

function showOverview(overview) {
  const config = choose(overview);
  const { headlines, events, linkerdConfigs, moreLinkerdConfigs } = overview;
  showBanner(headlines);
  show("tiles", ...[...(config?.tiles ?? overview.absentTiles), ...overview.tiles].map(tile));
  showFailures(config?.rollout);
  show("events", events.length === 0 ? none("This replica has written no Event since it started. The leader writes most Events.") : table("Written by this replica; kubectl get events lists all", [
    { name: "Time", width: "tiny", cell: (it) => clock(it.time) },
    { name: "Reason", width: "short", cell: (it) => [it.reason, it.type === "Warning" ? "bad" : undefined] },
    { name: "Object", width: "wide", code: true, cell: (it) => it.object },
    { name: "Note", cell: (it) => long(it.note, `event ${it.time} ${it.object}`) },
  ], events));
  showConditions(config, linkerdConfigs.length + moreLinkerdConfigs);
  showProcess(overview);
  if (!overview.servesDestination) disable();
}

function showFailures(rollout) {
  const failures = rollout?.failures ?? [];
  const more = (rollout?.failed ?? 0) - failures.length;
  const name = (it) => `${it.namespace}/${it.kind}/${it.name}`;
  $("failures").hidden = failures.length === 0;
  show("failed", ...failures.map((it) => element("li", {},
    element("code", {}, ...breakable(name(it))), " ", element("strong", { class: "bad" }, it.reason),
    it.time && element("span", { class: "quiet" }, ` restarted ${clock(it.time)}`),
    element("div", {}, long(it.message, name(it))))));
  say("more-failed", more > 0 ? `${more} more: choose Failed below.` : "");
}

const WATCHES = { current: "good", outdated: "bad", "not listed yet": "wait", "not served": "quiet" };
let wasWrong;

function showProcess({ headlines, waitingFor, leases, certificates, watches, clusters, ...process }) {
  const problems = headlines.filter(({ subject, attention }) => subject === "Process" && attention !== "done").length;
  say("process-title", problems === 0 ? "Process: healthy" : `Process: ${plural(problems, "problem")}`);
  // It opens by itself once, so that a reader can close it.
  if (wasWrong !== problems > 0) $("process").open = wasWrong = problems > 0;
  say("identity", `${process.identity}, version ${process.version} (${process.commit.slice(0, 12)}), ${process.ready ? "ready" : "not ready"}`);
  show("waiting", ...waitingFor.map((text) => element("li", { class: "wait" }, text)));
  show("leases", leases.length === 0 ? none("No job that is enabled needs a Lease.") : table("Leases, whose holders write", [
    { name: "Lease", width: "wide", code: true, cell: (it) => `${it.namespace}/${it.name}` },
    { name: "Holder", width: "wide", code: true, cell: (it) => it.holder || ["none", "wait"] },
    { name: "This replica", width: "short", cell: (it) => (it.leads ? ["leads", "good"] : ["waits", "quiet"]) },
    { name: "Problem", cell: (it) => [it.problem, "bad"] },
  ], leases));
  show("certificates", certificates.length === 0 ? none("No webhook and no identity service is enabled.") : table("Certificates in use", [
    { name: "Of", width: "wide", cell: (it) => it.name },
    { name: "Expires", cell: (it) => it.notAfter ?? ["none yet", "bad"] },
  ], certificates));
  const state = (it) => [it.failingSeconds === undefined || it.state !== "outdated" ? it.state : `outdated for ${duration(it.failingSeconds)}`, WATCHES[it.state]];
  const columns = (name) => [
    { name, width: "wide", code: true, cell: (it) => it.resource ?? it.name },
    { name: "State", width: "short", cell: state },
    { name: "Objects", width: "tiny", number: true, cell: (it) => it.objects },
  ];
  const problem = { name: "Problem", cell: (it) => [it.problem, it.state === "not served" ? "quiet" : "bad"] };
  show("cluster", table("Watched resources of this cluster", [...columns("Resource"), problem], watches));
  show("clusters", ...clusters.flatMap((cluster) => [
    element("h3", {}, `Cluster ${cluster.name}`),
    ...cluster.problems.map((problem) => element("p", { class: "bad" }, problem)),
    cluster.namespaces.length === 0 ? none("No proxy needs a namespace of it now.")
      : table(`Namespaces that proxies need${cluster.moreNamespaces ? `, ${cluster.moreNamespaces} not listed` : ""}`, columns("Namespace"), cluster.namespaces),
  ]));
}

// --- LinkerdConfigs -------------------------------------------------------------------------------------------------

let chosen = remembered("config");
// Whether the overview has the chosen one; true before the first overview.
let isListed = true;

// Returns the chosen LinkerdConfig. The first one is in effect and needs the most attention.
function choose({ linkerdConfigs: configs }) {
  chosen ??= configs[0]?.name;
  $("choice").hidden = configs.length < 2;
  show("chosen", ...configs.map(({ name, inEffect }) => element("option", { value: name }, inEffect ? name : `${name} (not in effect)`)));
  $("chosen").value = chosen;
  return configs.find((it) => it.name === chosen);
}

$("chosen").addEventListener("change", () => {
  chosen = $("chosen").value;
  remember("config", chosen);
  refresh();
});

function showConditions(config, count) {
  isListed = config !== undefined;
  if (!isListed) {
    show("conditions", none(count > 0 ? `LinkerdConfig ${chosen} does not exist, or is not one of the first.` : "There is no LinkerdConfig, or this process does not watch them."));
    show("config");
    forgetWorkloads("Without a LinkerdConfig nothing is rolled out.");
    return;
  }
  show("conditions",
    ...(config.warnings ?? []).map((text) => element("p", { class: "wait" }, text)),
    table(`Conditions of LinkerdConfig ${config.name} for ConfigMap ${config.target}; ${plural(count, "LinkerdConfig")} in all`, [
      { name: "Condition", width: "short", cell: (it) => it.type },
      { name: "Status", width: "tiny", cell: (it) => it.status },
      { name: "Reason", width: "short", cell: (it) => it.reason },
      { name: "Since", width: "short", cell: (it) => clock(it.lastTransitionTime) },
      { name: "Message", cell: (it) => long(it.message, it.type) },
    ], config.conditions));
}

const shown = (value) => (value === undefined ? ["none", "quiet"] : long(JSON.stringify(value), JSON.stringify(value)));

function showConfig(config) {
  const { values, drift, canary } = config;
  const paragraph = (tone) => (text) => element("p", { class: tone }, text);
  say("configuration-title", `Configuration ${config.name}: ${plural(values.length, "value")}, ${values.filter((it) => it.changes).length} would change`);
  show("config",
    element("p", {}, `${config.reason}: ${config.verdict}`),
    ...[config.controlPlaneMismatch, config.suspectBase, ...(config.warnings ?? [])].filter(Boolean).map(paragraph("wait")),
    drift && paragraph("bad")(`Drift: ${drift.manager} changed ${drift.paths.join(", ") || "the document"}`),
    ...config.problems.map((it) => `${it.path || "the document"}: ${it.reason}`).map(paragraph("bad")),
    canary && paragraph("wait")(`Canary ${canary.phase ?? "not begun"} in ${canary.namespaces.join(", ") || "no namespace"}: ${canary.message ?? ""}`),
    table(`Values that the resource names or that differ; ${plural(config.unmanaged, "other value")} as the installer wrote them`, [
      { name: "Value", code: true, cell: (it) => it.path },
      { name: "From", width: "short", cell: (it) => it.from },
      { name: "Live", code: true, cell: (it) => shown(it.live) },
      { name: "Effective", code: true, cell: (it) => shown(it.effective) },
      { name: "Change", width: "short", cell: (it) => (it.changes ? ["would change", "wait"] : ["none", "quiet"]) },
    ], values));
}

async function refresh() {
  const name = chosen;
  if (name === undefined || !isListed) return;
  try {
    const config = await json(`config.json?${new URLSearchParams({ name })}`);
    if (name !== chosen) return;
    showConfig(config);
    await showWorkloads(config);
  } catch (error) {
    if (name !== chosen) return;
    show("config", element("p", { class: "bad" }, `${name}: ${error.message}`));
    forgetWorkloads(`The workloads could not be read: ${error.message}`);
  }
}

// --- begin ----------------------------------------------------------------------------------------------------------

// The skip link has a fragment, too, and changes no tab.
function showTab() {
  const tabs = ["overview", "discovery"];
  const first = remembered("authority") ? "discovery" : "overview";
  const current = tabs.find((it) => location.hash === `#${it}`) ?? tabs.find((it) => !$(`${it}-tab`).hidden) ?? first;
  for (const it of tabs) {
    $(`${it}-tab`).hidden = it !== current;
    document.querySelector(`nav a[href="#${it}"]`).setAttribute("aria-current", it === current ? "page" : "false");
  }
}

addEventListener("hashchange", showTab);
showTab();
begin();

let updated;
every(OVERVIEW_EVERY, async () => {
  try {
    const first = chosen === undefined;
    showOverview(await json("overview.json"));
    updated = clock(new Date());
    say("connection", "connected");
    say("updated", `${updated} UTC`);
    $("connection").className = "";
    if (first) await refresh();
  } catch (error) {
    say("connection", `not reachable: ${error.message}`);
    $("connection").className = "bad";
    const next = updated && `All below is as it was at ${updated} UTC. If the replica was replaced, open the page again.`;
    showBanner([{ attention: "problem", subject: "This page", title: "The replica does not answer", sentence: error.message, next, command: "linkerd-operator dashboard" }]);
  }
});
every(CONFIG_EVERY, refresh);
