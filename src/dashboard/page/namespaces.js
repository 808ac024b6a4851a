// The namespaces with Pods of the mesh, each with a bar of its current Pods; one that is opened shows its workloads.

import { $, bar, element, json, long, none, plural, show, table } from "./elements.js";

// Those that need attention are first.
const LISTED = 30;
const DECISIONS = { Failed: "bad", Updating: "wait", Pending: "wait", Skipped: "quiet", NotSelected: "quiet", Observed: "quiet", UpToDate: "good" };

// What config.json has about the chosen LinkerdConfig.
let latest;
// The open namespaces, each with its workloads if the page has read them.
let opened = new Map();
let filter;
let showsAll = false;

const nameOf = (it) => `${it.namespace}/${it.kind}/${it.name}`;
const isShown = (it, text) => (!filter || it.decision === filter) && nameOf(it).includes(text);
const sum = (decisions) => Object.values(decisions).reduce((total, count) => total + count, 0);
const inOrder = (decisions) => [...new Set([...Object.keys(DECISIONS), ...Object.keys(decisions)])].filter((it) => decisions[it] > 0);

export function forgetWorkloads(why) {
  latest = undefined;
  opened = new Map();
  show("filters");
  show("namespaces", none(why));
}

export async function showWorkloads(config) {
  latest = config;
  for (const name of opened.keys()) await read(name);
  render();
}

// config.json lists the workloads that need attention. A namespace with others is read when it is open.
async function read(name) {
  if (latest === undefined) return;
  const known = latest.workloads.filter((it) => it.namespace === name);
  const row = latest.namespaces.find((it) => it.name === name);
  if (row === undefined || known.length >= sum(row.decisions)) {
    opened.set(name, known);
    return;
  }
  const whole = await json(`config.json?${new URLSearchParams({ name: latest.name, namespace: name })}`).catch(() => ({ workloads: known }));
  if (opened.has(name)) opened.set(name, whole.workloads);
}

function render() {
  if (latest === undefined) return;
  const { namespaces, moreNamespaces, workloads } = latest;
  const totals = {};
  for (const [decision, count] of namespaces.flatMap((it) => Object.entries(it.decisions))) totals[decision] = (totals[decision] ?? 0) + count;
  const choice = (decision, label) => element("button", { type: "button", "data-key": `filter ${decision}`, "data-filter": decision, "aria-pressed": String(decision === (filter ?? "")) }, label);
  show("filters", namespaces.length > 0 && choice("", "All"), ...inOrder(totals).map((it) => choice(it, `${it} ${totals[it]}`)));
  const text = $("search").value.trim().toLowerCase();
  const found = new Set(workloads.filter((it) => isShown(it, text)).map(({ namespace }) => namespace));
  const rows = namespaces.filter(({ name, decisions }) => ((!filter || decisions[filter] > 0) && name.includes(text)) || found.has(name));
  const rest = showsAll ? 0 : Math.max(rows.length - LISTED, 0);
  show("namespaces",
    ...rows.slice(0, rows.length - rest).map((it) => namespaceRow(it, text)),
    rows.length === 0 && none(namespaces.length === 0 ? "No workload has Pods of the mesh." : "No namespace matches."),
    rest > 0 && element("button", { type: "button", "data-key": "all" }, `Show ${plural(rest, "more namespace")}`),
    moreNamespaces > 0 && none(`${plural(moreNamespaces, "namespace")} not listed: linkerd-operator explain --workloads lists all.`));
}

function namespaceRow({ name, pods, decisions }, text) {
  const counts = inOrder(decisions).map((it) => element("span", { class: DECISIONS[it] ?? "quiet" }, `${decisions[it]} ${it} `));
  const node = element("details", { class: "namespace", "data-namespace": name, open: opened.has(name) },
    element("summary", { "data-key": `namespace ${name}` },
      element("code", {}, name),
      bar([pods.current, "good"], [pods.outdated, "wait"], [pods.meshed - pods.current - pods.outdated], [pods.uninjected, "bad"]),
      element("span", {}, `${pods.current}/${pods.meshed} current`, pods.uninjected > 0 && element("span", { class: "bad" }, `, ${pods.uninjected} without`)),
      element("span", {}, ...counts)));
  if (opened.has(name)) node.append(workloadTable(name, sum(decisions), text));
  return node;
}

function workloadTable(namespace, total, text) {
  // The first ones of all that wait, in the order of their restarts.
  const waiting = latest.workloads.filter((it) => it.decision === "Pending").map(nameOf);
  const decided = (it) => (waiting.includes(nameOf(it)) ? `Pending, number ${waiting.indexOf(nameOf(it)) + 1}` : it.decision);
  const rows = opened.get(namespace).filter((it) => isShown(it, text));
  return table(`${rows.length} of ${plural(total, "workload")}`, [
    { name: "Workload", width: "wide", code: true, cell: (it) => `${it.kind}/${it.name}` },
    { name: "Pods", width: "tiny", number: true, cell: (it) => `${it.pods.current}/${it.pods.meshed}` },
    { name: "Decision", width: "short", cell: (it) => [decided(it), DECISIONS[it.decision] ?? "quiet"] },
    { name: "Why", cell: (it) => long([it.reason, it.message].filter(Boolean).join(": "), `why ${nameOf(it)}`) },
  ], rows);
}

// The event does not bubble. It also arrives for a row that the script opened.
$("namespaces").addEventListener("toggle", async ({ target }) => {
  const name = target.dataset.namespace;
  if (name === undefined || !target.isConnected || target.open === opened.has(name)) return;
  if (target.open) {
    opened.set(name, []);
    await read(name);
  } else opened.delete(name);
  render();
}, true);

$("namespaces").addEventListener("click", ({ target }) => {
  if (target.dataset.key !== "all") return;
  showsAll = true;
  render();
});

$("filters").addEventListener("click", ({ target }) => {
  if (target.dataset.filter === undefined) return;
  filter = target.dataset.filter;
  render();
});

$("search").addEventListener("input", render);
