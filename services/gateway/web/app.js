// The page to watch. Lists come from the API every few seconds; the chosen run's events come as SSE.
// Text from the API only ever becomes textContent, never markup.

import { showAnswers } from "./answers.js";
import { draw, fit } from "./chart.js";
import { element, number } from "./dom.js";

const REWARD = "reward/mean";
const TILES = [
  ["Step", (m, run) => `${run.step}${run.max_steps ? ` / ${run.max_steps}` : ""}`],
  ["Reward", (m) => number(m[REWARD], 3)],
  ["Loss", (m) => number(m["train/loss"], 4)],
  ["Staleness", (m) => number(m["staleness/mean"], 2)],
  ["Tokens/s", (m) => number(m["throughput/tokens_per_second"], 0)],
  ["Bottleneck", (m) => m.bottleneck ?? null],
];
const FINAL = new Set(["succeeded", "failed", "cancelled"]);
const $ = (id) => document.getElementById(id);

let chosen = null; // run id
let source = null; // its EventSource
let run = null; // its record, kept up to date by events
let steps = []; // [{step, …metrics}]
let held = []; // [{step, accuracy}]
let newest = {}; // metrics, by name
let read = null; // the step of the answers that are shown
let pinned = false; // the user chose a run: do not jump to newer ones

function seen(seconds) {
  const age = Math.max(0, Date.now() / 1000 - seconds);
  return age < 90 ? `${age.toFixed(0)} s` : `${(age / 60).toFixed(0)} min`;
}

async function ask(path, options) {
  const response = await fetch(path, options);
  if (response.status === 204) return null;
  const body = await response.json();
  if (response.status === 401 && path !== "v1/session") askForKey(true);
  if (!response.ok) throw new Error(body.detail ?? response.statusText);
  return body;
}

const get = (path) => ask(path);
const post = (path, body) =>
  ask(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: body && JSON.stringify(body),
  });

const remove = (path) => ask(path, { method: "DELETE" });

function askForKey(wanted) {
  if ($("key-form").hidden === !wanted) return;
  $("key-form").hidden = !wanted;
  document.querySelector("main").hidden = wanted;
  if (wanted) $("key").focus();
}

async function refresh() {
  try {
    const [{ runs }, { workers }] = await Promise.all([get("v1/runs"), get("v1/workers")]);
    $("connection").textContent = "";
    askForKey(false);
    showRuns(runs);
    showWorkers(workers);
    if (run) await refreshAnswers();
  } catch (error) {
    if ($("key-form").hidden) $("connection").textContent =
      error instanceof TypeError ? "The gateway does not answer; trying again." : error.message;
  }
}

async function follow() {
  await refresh();
  setTimeout(follow, document.hidden ? 15000 : 3000);
}

function showRuns(runs) {
  $("no-runs").hidden = runs.length > 0;
  $("welcome").hidden = runs.length > 0;
  if (run?.listed && !runs.some((record) => record.id === chosen)) leave(); // somebody deleted it
  const active = runs.find((record) => !FINAL.has(record.state) && record.state !== "queued");
  const wanted = decodeURIComponent(location.hash.slice(1));
  if (!chosen) {
    const first = runs.find((record) => record.id === wanted) ?? active ?? runs[0];
    pinned = Boolean(wanted && first?.id === wanted);
    if (first) choose(first);
  } else if (!pinned && active && active.id !== chosen) choose(active);
  $("runs").replaceChildren(
    ...runs.map((record) => {
      const button = element("button", null, { "aria-current": record.id === chosen });
      button.append(
        element("b", record.name),
        element("span", record.state, { class: `badge ${record.state}` }),
        element("small", `${record.kind} · step ${record.step}${record.max_steps ? ` of ${record.max_steps}` : ""}`),
      );
      button.addEventListener("click", () => {
        pinned = true;
        choose(record);
        button.setAttribute("aria-current", "true");
      });
      const item = element("li");
      item.append(button);
      return item;
    }),
  );
  const fresh = runs.find((record) => record.id === chosen);
  if (fresh) {
    run = { ...run, ...fresh, listed: true, step: Math.max(run.step, fresh.step) };
    showRun();
  }
}

/** No run is shown, so that the next list of runs chooses one. */
function leave() {
  source?.close();
  source = chosen = run = null;
  pinned = false;
  history.replaceState(null, "", location.pathname);
  $("run").hidden = true;
}

async function refreshAnswers() {
  const [of, step] = [chosen, run.step];
  if (run.kind !== "rl" || read === step) return;
  const { samples } = await get(`v1/runs/${encodeURIComponent(of)}/samples?limit=8`);
  if (of !== chosen) return;
  // They are written just after the step is told of.
  if (samples[0]?.step >= step || FINAL.has(run.state)) read = step;
  $("answers-box").hidden = !samples.length;
  showAnswers($("answers"), samples);
}

function choose(record) {
  if (record.id === chosen) return;
  source?.close();
  chosen = record.id;
  run = record;
  steps = [];
  held = [];
  newest = { ...record.summary };
  read = null;
  $("answers-box").hidden = true;
  if (pinned) history.replaceState(null, "", `#${encodeURIComponent(chosen)}`);
  $("run").hidden = false;
  $("action-problem").textContent = "";
  $("events").replaceChildren();
  $("metric").replaceChildren();
  for (const button of $("runs").querySelectorAll("button")) button.removeAttribute("aria-current");
  showRun();
  showChart();
  source = new EventSource(`v1/runs/${encodeURIComponent(chosen)}/events`);
  source.onerror = () => FINAL.has(run.state) && source.close();
  for (const kind of ["state", "step", "evaluation", "progress", "worker", "warning", "checkpoint"])
    source.addEventListener(kind, (message) => apply(JSON.parse(message.data)));
}

let drawing = false;
function apply(event) {
  const data = event.data;
  if (event.kind === "state") {
    run.state = data.state;
    run.reason = data.reason ?? "";
    if (FINAL.has(data.state)) source.close();
  } else if (event.kind === "step") {
    run.step = data.step;
    newest = data;
    // A learner that went back to its checkpoint trains the same steps again.
    while (steps.length && steps.at(-1).step >= data.step) steps.pop();
    steps.push(data);
  } else if (event.kind === "progress") {
    newest = { ...newest, ...data };
    run.step = data.done ?? data.step ?? run.step;
    run.max_steps = data.total ?? run.max_steps;
    steps.push({ step: data.done, ...data });
  } else if (event.kind === "evaluation") held.push(data);
  if (event.kind !== "step" && event.kind !== "progress") say(event);
  if (drawing) return;
  drawing = true; // a replay brings thousands of events: draw once
  requestAnimationFrame(() => {
    drawing = false;
    if (!run) return;
    showRun();
    showChart();
  });
}

function say(event) {
  const d = event.data;
  const texts = {
    state: () => `${d.state}${d.reason ? `: ${d.reason}` : ""}`,
    evaluation: () => `evaluation at step ${d.step}: accuracy ${number(d.accuracy, 3)} on ${d.rows} rows`,
    worker: () => `worker ${d.worker} ${d.state}: ${d.detail}`,
    warning: () => d.message,
    checkpoint: () => `checkpoint at step ${d.step}: ${d.directory}`,
  };
  const bad = d.state === "failed" ? "bad" : event.kind;
  const item = element("li", null, { class: bad });
  const when = new Date(event.time * 1000);
  item.append(element("time", when.toLocaleTimeString(), { datetime: when.toISOString() }));
  item.append(element("span", texts[event.kind]?.() ?? JSON.stringify(d)));
  $("events").prepend(item);
  while ($("events").childElementCount > 200) $("events").lastChild.remove();
}

function showRun() {
  $("name").textContent = run.name;
  $("id").textContent = run.id;
  $("state").textContent = run.state;
  $("state").className = `badge ${run.state}`;
  $("reason").textContent = run.reason;
  $("cancel").hidden = FINAL.has(run.state);
  $("resume").hidden = !(run.kind === "rl" && (run.state === "failed" || run.state === "cancelled"));
  $("delete").hidden = !FINAL.has(run.state);
  const share = run.max_steps ? Math.min(1, run.step / run.max_steps) : 0;
  $("bar").style.width = `${share * 100}%`;
  $("bar").parentElement.setAttribute("aria-valuenow", Math.round(share * 100));
  const tiles = TILES.map(([name, value]) => [name, value(newest, run)]);
  if (held.length) tiles.push(["Held-out", number(held.at(-1).accuracy, 3)]);
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

function showWorkers(workers) {
  $("workers-box").hidden = workers.length === 0;
  $("workers").replaceChildren(
    ...workers.map((w) => {
      const row = element("tr");
      row.append(
        element("td", w.id),
        element("td", w.state, { class: ["unhealthy", "silent"].includes(w.state) ? "failed" : "" }),
        element("td", w.run ?? ""),
        element("td", w.version ?? "", { class: "n" }),
        element("td", w.groups_in_flight, { class: "n" }),
        element("td", number(w.tokens_per_second, 0), { class: "n" }),
        element("td", seen(w.heartbeat), { class: "n" }),
        element("td", w.error),
      );
      return row;
    }),
  );
}

function showChart() {
  const names = [...new Set(steps.flatMap(Object.keys))]
    .filter((name) => name !== "step" && steps.some((s) => typeof s[name] === "number"))
    .sort();
  const picker = $("metric");
  const current = picker.value;
  if (names.length !== picker.length) {
    picker.replaceChildren(...names.map((name) => element("option", name)));
    const start = [current, REWARD, "train/loss"].find((name) => names.includes(name));
    if (start) picker.value = start;
  }
  const points = steps.filter((s) => Number.isFinite(s[picker.value])).map((s) => [s.step, s[picker.value]]);
  const dots = picker.value === REWARD || !points.length ? held.map((e) => [e.step, e.accuracy]) : [];
  const none = !points.length && !dots.length;
  picker.parentElement.hidden = !names.length;
  $("waiting").textContent = none ? (FINAL.has(run.state) ? "No step was trained." : "Waiting for the first step.") : "";
  draw($("chart"), picker.value, points, dots);
}

async function showRecipes() {
  const { recipes } = await get("v1/recipes");
  $("recipes").replaceChildren(
    ...recipes.map((recipe) => {
      const one = element("details");
      one.append(element("summary", recipe.name), element("p", recipe.when));
      return one;
    }),
  );
}

async function act(button, action) {
  button.disabled = true;
  $("action-problem").textContent = "";
  try {
    await action();
  } catch (error) {
    $("action-problem").textContent = error.message;
  }
  button.disabled = false;
}

$("cancel").addEventListener("click", () => {
  if (!confirm(`Cancel ${run.name}? It writes a checkpoint first, and can be resumed.`)) return;
  act($("cancel"), () => post(`v1/runs/${encodeURIComponent(run.id)}/cancel`));
});
$("resume").addEventListener("click", () =>
  act($("resume"), async () => {
    const record = await post("v1/runs", { resume_from: run.id });
    pinned = true;
    choose(record);
  }),
);
$("delete").addEventListener("click", () => {
  const made = run.step ? `, the ${run.step} steps it has trained` : "";
  if (!confirm(`Delete ${run.name} (${run.id})? Its checkpoints${made} and its answers are gone for good.`)) return;
  act($("delete"), async () => {
    await remove(`v1/runs/${encodeURIComponent(run.id)}`);
    leave();
    await refresh();
  });
});
$("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("key-problem").textContent = "";
  try {
    await post("v1/session", { key: $("key").value });
    location.reload();
  } catch (error) {
    $("key-problem").textContent = error.message;
  }
});

$("curl").textContent =
  `curl -F name=mine -F file=@train.jsonl \\\n  ${location.origin}/v1/datasets\n` +
  `curl ${location.origin}/v1/runs \\\n  -H 'content-type: application/json' \\\n` +
  `  -d '{"recipe": "grpo", "config": {\n` +
  `  "model": {"path": "PATH"},\n  "data": {"dataset": "mine"}}}'`;
$("metric").addEventListener("change", showChart);
addEventListener("resize", () => fit($("chart")));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => run && showChart());
showRecipes().catch(() => setTimeout(showRecipes, 5000));
follow();
