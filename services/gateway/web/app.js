// The page to watch. Lists come from the API every few seconds; the chosen run's events come as SSE.
// Text from the API only ever becomes textContent, never markup.

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
let pinned = false; // the user chose a run: do not jump to newer ones

function element(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

function number(value, digits) {
  if (typeof value !== "number" || !Number.isFinite(value)) return null;
  if (digits > 0 && value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return value.toLocaleString(undefined, { maximumFractionDigits: digits });
}

function seen(seconds) {
  const age = Math.max(0, Date.now() / 1000 - seconds);
  return age < 90 ? `${age.toFixed(0)} s` : `${(age / 60).toFixed(0)} min`;
}

async function get(path) {
  const response = await fetch(path);
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail ?? response.statusText);
  return body;
}

async function refresh() {
  try {
    const [{ runs }, { workers }] = await Promise.all([get("v1/runs"), get("v1/workers")]);
    $("connection").textContent = "";
    showRuns(runs);
    showWorkers(workers);
  } catch (error) {
    $("connection").textContent =
      error instanceof TypeError ? "The gateway does not answer; trying again." : error.message;
  }
  setTimeout(refresh, document.hidden ? 15000 : 3000);
}

function showRuns(runs) {
  $("no-runs").hidden = runs.length > 0;
  $("welcome").hidden = runs.length > 0;
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
    run = { ...run, ...fresh, step: Math.max(run.step, fresh.step) };
    showRun();
  }
}

function choose(record) {
  if (record.id === chosen) return;
  source?.close();
  chosen = record.id;
  run = record;
  steps = [];
  held = [];
  newest = { ...record.summary };
  if (pinned) history.replaceState(null, "", `#${encodeURIComponent(chosen)}`);
  $("run").hidden = false;
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
    showRun();
    showChart();
  });
}

function say(event) {
  const d = event.data;
  const texts = {
    state: () => `${d.state}${d.reason ? `: ${d.reason}` : ""}`,
    evaluation: () => `evaluation at step ${d.step}: accuracy ${number(d.accuracy, 3)} on ${d.rows} rows`,
    worker: () => `worker ${d.worker} ${d.state}${d.error ? `: ${d.error}` : ""}`,
    warning: () => d.message,
    checkpoint: () => `checkpoint at step ${d.step}: ${d.directory}`,
  };
  const bad = d.error || d.state === "failed" ? "bad" : event.kind;
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
        element("td", w.state, { class: w.state === "unhealthy" ? "failed" : "" }),
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
  $("legend").replaceChildren(...(dots.length ? [element("i"), "held-out accuracy"] : []));
  const none = !points.length && !dots.length;
  $("chart").style.display = none ? "none" : "";
  picker.parentElement.hidden = !names.length;
  $("waiting").textContent = none ? (FINAL.has(run.state) ? "No step was trained." : "Waiting for the first step.") : "";
  if (!none) draw($("chart"), points, dots);
}

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 5, 10].map((f) => f * unit).find((s) => s >= raw);
  const result = [];
  for (let v = Math.ceil(low / size) * size; v <= high + size * 1e-9; v += size) result.push(v);
  return result;
}

function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
  return value.toLocaleString(undefined, { maximumSignificantDigits: 4 });
}

function draw(chart, points, dots) {
  const width = chart.clientWidth, height = chart.clientHeight;
  const box = { left: 52, right: width - 14, top: 12, bottom: height - 24 };
  const all = [...points, ...dots];
  const xs = all.map((p) => p[0]), ys = all.map((p) => p[1]);
  const reduce = (list, pick) => list.reduce((a, b) => pick(a, b));
  const x0 = reduce(xs, Math.min), x1 = Math.max(reduce(xs, Math.max), x0 + 1);
  let y0 = reduce(ys, Math.min), y1 = reduce(ys, Math.max);
  const room = (y1 - y0 || Math.abs(y1) || 1) * 0.08;
  y0 -= room;
  y1 += room;
  const x = (v) => box.left + ((v - x0) / (x1 - x0)) * (box.right - box.left);
  const y = (v) => box.bottom - ((v - y0) / (y1 - y0)) * (box.bottom - box.top);
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const nodes = [];
  for (const v of ticks(y0, y1, 4)) {
    nodes.push(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(v), y2: y(v) }));
    nodes.push(svg("text", { x: box.left - 8, y: y(v) + 4, "text-anchor": "end" }, short(v)));
  }
  for (const v of ticks(x0, x1, Math.min(8, x1 - x0)))
    if (Number.isInteger(v)) nodes.push(svg("text", { x: x(v), y: height - 6, "text-anchor": "middle" }, v.toLocaleString()));
  if (points.length > 1)
    nodes.push(svg("path", { class: "line", d: "M" + points.map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("L") }));
  else for (const [a, b] of points) nodes.push(svg("circle", { class: "dot", cx: x(a), cy: y(b), r: 3.5 }));
  for (const [a, b] of dots) nodes.push(svg("circle", { class: "held", cx: x(a), cy: y(b), r: 5.5 }));
  const tip = svg("g", {});
  chart.replaceChildren(...nodes, tip);
  chart.onpointerleave = () => tip.replaceChildren();
  chart.onpointermove = (event) => {
    const at = x0 + ((event.offsetX - box.left) / (box.right - box.left)) * (x1 - x0);
    const near = reduce(all, (a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
    const end = x(near[0]) > (box.left + box.right) / 2;
    tip.replaceChildren(
      svg("line", { class: "cursor", x1: x(near[0]), x2: x(near[0]), y1: box.top, y2: box.bottom }),
      svg("circle", { class: "dot", cx: x(near[0]), cy: y(near[1]), r: 4 }),
      svg("text", { class: "tip", x: x(near[0]) + (end ? -8 : 8), y: box.top + 10, "text-anchor": end ? "end" : "start" }, `step ${near[0]}: ${short(near[1])}`),
    );
  };
}

async function showRecipes() {
  const { recipes } = await get("v1/recipes");
  $("recipes").replaceChildren(
    ...recipes.flatMap((recipe) => [element("dt", recipe.name), element("dd", recipe.when)]),
  );
}

$("curl").textContent =
  `curl -F name=mine -F file=@train.jsonl \\\n  ${location.origin}/v1/datasets\n` +
  `curl ${location.origin}/v1/runs \\\n  --json '{"recipe": "grpo", "config": {\n` +
  `  "model": {"path": "PATH"},\n  "data": {"dataset": "mine"}}}'`;
$("metric").addEventListener("change", showChart);
addEventListener("resize", () => run && showChart());
showRecipes().catch(() => setTimeout(showRecipes, 5000));
refresh();
