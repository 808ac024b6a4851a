// The dashboard's script. It reads overview.json every few seconds, and config.json for the chosen LinkerdConfig. The
// server decides what is wrong; the page shows it first.

import { $, bar, clock, counted, duration, element, every, json, long, none, plural, remember, remembered, say, show, table } from "./elements.js";
import { begin, disable } from "./discovery.js";
import { forgetWorkloads, showWorkloads } from "./namespaces.js";

const OVERVIEW_EVERY = 2000;
const CONFIG_EVERY = 5000;

// --- banner ---------------------------------------------------------------------------------------------------------

const TONES = { done: "good", progressing: "quiet", waiting: "wait", problem: "bad" };
const TITLES = { done: "Nothing is wrong", progressing: "In progress", waiting: "Waiting", problem: "Problem" };

function showBanner([worst, ...others]) {
  const about = (it) => [it.subject, it.reason].filter(Boolean);
  $("banner").className = TONES[worst.attention];
  document.title = `${TITLES[worst.attention]}: linkerd-operator`;
  say("banner-title", [TITLES[worst.attention], ...about(worst), worst.since && `since ${clock(worst.since)}`].filter(Boolean).join(" · "));
  show("advice",
    element("div", { class: "sentence" }, long(worst.sentence, "sentence")),
    worst.next && element("p", {}, worst.next),
    worst.command && element("div", { class: "command" },
      element("code", {}, worst.command),
      element("button", { type: "button", "data-key": "copy", "aria-label": `Copy ${worst.command}` }, "Copy")),
    others.length > 0 && element("ul", {}, ...others.map((it, index) =>
      element("li", { class: TONES[it.attention] }, long(`${about(it).join(" · ")}: ${it.sentence}`, `other ${index}`)))));
}

$("advice").addEventListener("click", async ({ target }) => {
  if (target.dataset.key !== "copy") return;
  const command = target.previousElementSibling;
  try {
    await navigator.clipboard.writeText(command.textContent);
    target.textContent = "Copied";
  } catch {
    // Without a secure context or the permission, the command is selected, so that the keyboard copies it.
    getSelection().selectAllChildren(command);
  }
});

// --- tiles ----------------------------------------------------------------------------------------------------------

// A tile has a name, a value, its class, and lines below: texts, nodes, or [text, class].
function tile(name, value, tone, ...lines) {
  const text = ([text, tone]) => element("p", { class: tone }, text);
  const line = (it) => (it instanceof Node ? it : text(Array.isArray(it) ? it : [it, "quiet"]));
  return element("div", { class: "tile" }, element("h2", {}, name), element("p", { class: `value ${tone}` }, value), ...lines.filter(Boolean).map(line));
}

const EFFECTS = { Reconciled: ["In effect", "good"], Observing: ["Only observed", "quiet"], Suspended: ["Suspended", "wait"], Canary: ["Canary", "wait"] };

function configurationTile(config) {
  if (config === undefined) return tile("Configuration", "None", "quiet", "no LinkerdConfig is watched");
  const ready = config.conditions.find(({ type }) => type === "Ready");
  const effects = { True: EFFECTS[ready?.reason] ?? ["In effect", "good"], False: ["Not in effect", "bad"] };
  const effect = config.inEffect ? effects[ready?.status] ?? ["Not known yet", "quiet"] : ["In reserve", "quiet"];
  return tile("Configuration", ...effect, `${config.name}, mode ${config.mode}`,
    ready && `${ready.reason}, since ${clock(ready.lastTransitionTime)}`,
    config.warnings?.length > 0 && [`${plural(config.warnings.length, "warning")}: see Configuration`, "wait"]);
}

const PHASES = { Halted: "bad", RolledBack: "bad", Complete: "good", Paused: "wait", Waiting: "wait" };

function rolloutTile(rollout) {
  if (rollout === undefined) return tile("Rollout", "None", "quiet");
  const { phase, selected, updated, updating, pending, failed, atLeastSeconds: left, nextWindow } = rollout;
  return tile("Rollout", phase || "Not begun", PHASES[phase] ?? "",
    selected > 0 ? bar([updated, "good"], [updating, "wait"], [failed, "bad"], [selected - updated - updating - failed]) : "no workload is selected",
    selected > 0 && `${updated} of ${plural(selected, "workload")} updated`,
    failed > 0 && [`${failed} failed`, "bad"],
    counted([[updating, "restarting"], [pending, "pending"]]),
    left !== undefined && `at least ${duration(left)} left`,
    nextWindow && `the window opens ${clock(nextWindow)}`);
}

function proxiesTile(pods) {
  if (pods === undefined) return tile("Current proxies", "Not known", "quiet");
  const { meshed, current, outdated, pinned, unknown, uninjected, waitingForNetwork, otherShape } = pods;
  return tile("Current proxies", `${current} of ${meshed}`, outdated + uninjected === 0 ? "good" : "",
    bar([current, "good"], [outdated, "wait"], [meshed - current - outdated], [uninjected, "bad"]),
    outdated > 0 && [`${outdated} outdated`, "wait"],
    uninjected > 0 && [`${plural(uninjected, "Pod")} without a proxy`, "bad"],
    counted([[pinned, "pinned"], [unknown, "unknown"], [waitingForNetwork, "waiting for the network"], [otherShape, "of another shape"]]));
}

// Returns the name of a replica without the suffix that makes it unique.
const replica = (identity) => identity.replace(/_[0-9a-f]{16}$/, "");

function replicasTile({ replicas, leases, identity }) {
  const holders = [...new Set(leases.map(({ holder }) => holder).filter(Boolean))];
  return tile("Replicas", replicas === undefined ? "This replica" : plural(replicas, "replica"), "",
    ...holders.map((holder) => `${replica(holder)} leads${holder === identity ? ": this replica" : ""}`),
    leases.length > 0 && holders.length === 0 && ["no replica leads", "wait"],
    !holders.includes(identity) && `this is ${replica(identity)}`);
}

function externalTile(counts) {
  if (counts === undefined) return tile("ExternalWorkloads", "Not watched", "quiet");
  const { total, notReady, withoutService } = counts;
  return tile("ExternalWorkloads", String(total), "",
    total > 0 && (notReady > 0 ? [`${notReady} not ready`, "wait"] : ["all are ready", "good"]),
    withoutService > 0 && [`${withoutService} without a Service`, "wait"]);
}

function expiry(notAfter, now) {
  if (notAfter === undefined) return ["None yet", "bad"];
  const left = (Date.parse(notAfter) - Date.parse(now)) / 1000;
  return left <= 0 ? ["Expired", "bad"] : [`${duration(left).replace(/ \d+ (h|s)$/, "")} left`, left < 7 * 86400 ? "wait" : "good"];
}

function certificateTile({ certificate, now }) {
  if (certificate === undefined) return tile("Certificates", "None", "quiet", "no webhook is enabled");
  const { name, notAfter } = certificate;
  return tile("Certificates", ...expiry(notAfter, now), `of the ${name}`, notAfter && `until ${clock(notAfter)}`);
}

// --- overview -------------------------------------------------------------------------------------------------------

function showOverview(overview) {
  const config = choose(overview);
  const { headlines, events, linkerdConfigs, moreLinkerdConfigs } = overview;
  showBanner(headlines);
  show("tiles", configurationTile(config), rolloutTile(config?.rollout), proxiesTile(config?.rollout?.pods),
    replicasTile(overview), externalTile(overview.externalWorkloads), certificateTile(overview));
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
    element("code", {}, name(it)), " ", element("strong", { class: "bad" }, it.reason),
    it.time && element("span", { class: "quiet" }, ` restarted ${clock(it.time)}`),
    element("div", {}, long(it.message, name(it))))));
  say("more-failed", more > 0 ? `${more} more: choose Failed below.` : "");
}

const WATCHES = { current: "good", outdated: "bad", "not listed yet": "wait", "not served": "quiet" };
let wasWrong;

function showProcess({ headlines, waitingFor, leases, certificate, watches, clusters, now, ...process }) {
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
  show("certificates", certificate === undefined ? none("No webhook is enabled.") : table("Certificates in use", [
    { name: "For", width: "short", cell: (it) => it.name },
    { name: "Expiry", width: "short", cell: (it) => expiry(it.notAfter, now) },
    { name: "Expires", cell: (it) => it.notAfter },
  ], [certificate]));
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
    showBanner([{ attention: "problem", subject: "This page", reason: "not reachable", sentence: error.message, next, command: "linkerd-operator dashboard" }]);
  }
});
every(CONFIG_EVERY, refresh);
