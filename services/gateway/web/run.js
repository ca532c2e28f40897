// The run that is shown: its record, its newest events, and the chosen metric by step. History comes
// from the metrics of the API, one metric at a time; what happens from now on comes as events.

import { showAnswers } from "./answers.js";
import { get, pages, runPath } from "./api.js";
import { draw, fit } from "./chart.js";
import { $, OVER, element, number, size, tableRow } from "./dom.js";

const REWARD = "reward/mean";
const EVENTS = 200; // newest events that are shown
const TILES = [
  ["Step", (m, run) => `${run.step}${run.max_steps ? ` / ${run.max_steps}` : ""}`],
  ["Reward", (m) => number(m[REWARD], 3)],
  ["Loss", (m) => number(m["train/loss"], 4)],
  ["Staleness", (m) => number(m["staleness/mean"], 2)],
  ["Tokens/s", (m) => number(m["throughput/tokens_per_second"], 0)],
  ["Bottleneck", (m) => m.bottleneck ?? null],
  ["Push", (m) => size(m["push/bytes"])],
  ["On disk", (m, run) => size(run.disk_bytes)],
];
const SHARE = "dataset/share/";
const OF_DATASET = [["share", 2], ["reward", 3], ["pass_rate", 3], ["tokens", 1], ["truncated", 3], ["filtered", 3]];
const over = (run) => OVER.has(run.state);
export let run = null; // the shown run's record, kept up to date by events

let source = null; // its EventSource
let points = new Map(); // the chosen metric by step, and when it was measured
let heldOut = new Map(); // of each evaluation by step: accuracy, or the reward where nothing says what is correct
let heldOutName = "accuracy";
let heldOutSet = null; // the one that the chart shows
let latest = {}; // the newest metrics by name
let recent = []; // the newest step events, which history may not have yet
let answered = null; // the step of the answers that are shown, and whether the run was over

// Show the run of this record, as GET v1/runs/RUN has it.
export function open(record) {
  close();
  run = record;
  latest = { ...record.metrics };
  $("run").hidden = false;
  $("action-problem").textContent = "";
  showRun();
  showDatasets();
  showMetrics();
  showChart();
  source = new EventSource(`${runPath(run.id, "/events")}?newest=${EVENTS}`);
  source.onerror = () => over(run) && source.close();
  for (const kind of ["state", "step", "evaluation", "progress", "worker", "warning", "checkpoint"])
    source.addEventListener(kind, (message) => apply(JSON.parse(message.data)));
}

export function close() {
  source?.close();
  source = run = answered = null;
  points = new Map();
  heldOut = new Map();
  heldOutSet = null;
  recent = [];
  $("run").hidden = $("answers-box").hidden = true;
  $("events").replaceChildren();
  $("metric").replaceChildren();
}

// Take over what a list says of the run.
export function update(summary) {
  run = { ...run, ...summary, step: Math.max(run.step, summary.step) };
  showRun();
}

export async function refreshAnswers() {
  const { id, kind, step } = run;
  // A run that has failed also shows answers that were judged and not trained.
  const seen = `${step} ${over(run)}`;
  if (kind !== "rl" || answered === seen || (!$("answers-box").hidden && !$("answers-box").open)) return;
  const { samples, judged } = await get(runPath(id, "/samples?limit=8"));
  if (run?.id !== id) return;
  // They are written just after the step is told of.
  if (samples[0]?.step >= step || over(run)) answered = seen;
  $("answers-box").hidden = !samples.length && !judged.length;
  showAnswers($("answers"), [...samples, ...judged]);
}

async function loadHistory() {
  const { id } = run;
  const metric = $("metric").value;
  const path = runPath(id, `/metrics?limit=10000&name=evaluation/accuracy&name=evaluation/reward&name=evaluation/name&name=${encodeURIComponent(metric)}`);
  const loaded = new Map();
  try {
    for await (const { metrics } of pages(path, "start")) {
      if (run?.id !== id || $("metric").value !== metric) return;
      for (const row of metrics)
        if ("evaluation/step" in row)
          addEvaluation(row["evaluation/step"], row["evaluation/accuracy"], row["evaluation/reward"], row["evaluation/name"]);
        else loaded.set(row.step, { value: row[metric], time: row.time });
    }
  } catch {
    return; // the chart goes on with events
  }
  points = loaded;
  for (const row of recent) addPoint(row);
  showChart();
}

// A learner that went back to its checkpoint trains the same steps again. An event that is told again
// takes nothing away: a supervised run has events of some of its steps alone.
function addPoint(row) {
  for (const [step, { time }] of points) if (step >= row.step && time <= row.time) points.delete(step);
  const value = row[$("metric").value];
  if (Number.isFinite(value) && !points.has(row.step)) points.set(row.step, { value, time: row.time });
}

// The chart shows the first of several held-out sets; the events name them all.
function addEvaluation(step, accuracy, reward, set = "") {
  heldOutSet ??= set;
  if (set !== heldOutSet) return;
  heldOutName = accuracy === undefined ? "reward" : "accuracy";
  heldOut.set(step, accuracy ?? reward);
}

let drawing = false;
function apply({ kind, data, time }) {
  if (kind === "state") {
    run.state = data.state;
    run.reason = data.reason ?? "";
    if (over(run)) source.close();
  } else if (kind === "step" || kind === "progress") {
    const row = { ...data, step: data.step ?? data.done };
    latest = { ...latest, ...row };
    run.step = row.step ?? run.step;
    run.max_steps = data.total ?? run.max_steps;
    recent = [...recent.slice(-EVENTS), row];
    addPoint(row);
  } else if (kind === "evaluation") addEvaluation(data.step, data.accuracy, data.reward, data.name);
  if (kind !== "step" && kind !== "progress") say(kind, data, time);
  if (drawing) return;
  drawing = true; // a replay brings hundreds of events: draw once
  requestAnimationFrame(() => {
    drawing = false;
    if (!run) return;
    showRun();
    showDatasets();
    showMetrics();
    showChart();
  });
}

function say(kind, d, time) {
  const texts = {
    state: () => `${d.state}${d.reason ? `: ${d.reason}` : ""}`,
    evaluation: () =>
      `evaluation at step ${d.step}: ${"accuracy" in d ? "accuracy" : "reward"} ${number(d.accuracy ?? d.reward, 3)} on ${d.rows} rows${d.name ? ` of ${d.name}` : ""}`,
    worker: () => `worker ${d.worker} ${d.state}: ${d.detail}`,
    warning: () => d.message,
    checkpoint: () => `checkpoint at step ${d.step}: ${d.directory}`,
  };
  const item = element("li", null, { class: d.state === "failed" ? "bad" : kind });
  const when = new Date(time * 1000);
  item.append(element("time", when.toLocaleTimeString(), { datetime: when.toISOString() }));
  item.append(element("span", texts[kind]?.() ?? JSON.stringify(d)));
  $("events").prepend(item);
  while ($("events").childElementCount > EVENTS) $("events").lastChild.remove();
}

function showRun() {
  $("name").textContent = run.name;
  $("id").textContent = run.id;
  $("state").textContent = run.state;
  $("state").className = `badge ${run.state}`;
  $("reason").textContent = run.reason;
  $("report").href = runPath(run.id, "/report");
  $("report").hidden = !run.step;
  $("cancel").hidden = over(run) || run.state === "cancelling";
  $("resume").hidden = run.state !== "failed" && run.state !== "cancelled";
  $("delete").hidden = !over(run);
  const share = run.max_steps ? Math.min(1, run.step / run.max_steps) : 0;
  $("bar").style.width = `${share * 100}%`;
  $("bar").parentElement.setAttribute("aria-valuenow", Math.round(share * 100));
  const tiles = TILES.map(([name, value]) => [name, value(latest, run)]);
  if (heldOut.size) tiles.push([`Held-out ${heldOutName}`, number([...heldOut.values()].at(-1), 3)]);
  $("tiles").replaceChildren(
    ...tiles
      .filter(([, value]) => value !== null)
      .map(([name, value]) => {
        const tile = element("div");
        tile.append(element("dt", name), element("dd", value));
        return tile;
      }),
  );
}

// The datasets of a mixture. A number that the newest step lacks is that of an earlier step.
function showDatasets() {
  const names = Object.keys(latest).filter((name) => name.startsWith(SHARE)).map((name) => name.slice(SHARE.length));
  $("datasets-box").hidden = !names.length;
  $("datasets").replaceChildren(
    ...names.sort().map((name) =>
      tableRow(name, ...OF_DATASET.map(([key, digits]) => [number(latest[`dataset/${key}/${name}`], digits) ?? "–", "n"])),
    ),
  );
}

function showMetrics() {
  const picker = $("metric");
  const names = Object.keys(latest).filter((name) => typeof latest[name] === "number" && !["step", "done", "total"].includes(name)).sort();
  picker.parentElement.hidden = !names.length;
  if (names.length === picker.length) return;
  const before = picker.value;
  picker.replaceChildren(...names.map((name) => element("option", name)));
  picker.value = [before, REWARD, "train/loss"].find((name) => names.includes(name)) ?? names[0];
  if (picker.value !== before) loadHistory();
}

function showChart() {
  const name = $("metric").value;
  const ordered = (map) => [...map].sort(([a], [b]) => a - b);
  const dots = name === REWARD || !points.size ? ordered(heldOut) : [];
  const nothing = over(run) ? "No step was trained." : "Waiting for the first step.";
  $("waiting").textContent = points.size || dots.length ? "" : nothing;
  const line = ordered(points).map(([step, { value }]) => [step, value]);
  draw($("chart"), name, line, dots, `held-out ${heldOutName}`);
}

$("metric").addEventListener("change", loadHistory);
addEventListener("resize", () => fit($("chart")));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => run && showChart());
