// The list of runs: search and filters, keyed rows that follow the stream, chains, and the choice for a comparison.

import { computed, effect, signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { type Run, type Schemas, get, mayChange, post } from "./api";
import { ago, bytes, duration, moment, number } from "./format";
import { Action, Name, OVER, Problem, Progress, SearchField, State, useLoaded } from "./parts";
import { ask, go, parts, query, runPath } from "./router";
import { loadSeries } from "./series";
import { FILTERS, type Filter, known, list } from "./store";

type Chain = Schemas["ChainView"];

const STATES = ["queued", "starting", "running", "paused", "cancelling", "succeeded", "failed", "cancelled"];

const filter = computed<Filter>(() => {
  const pairs = FILTERS.map((name) => [name, query.value.get(name)] as const).filter(([, value]) => value);
  return Object.fromEntries(pairs) as Filter;
});
const filterKey = computed(() => JSON.stringify(filter.value));

/** Runs chosen for a comparison. */
export const chosen = signal<string[]>([]);
const toggle = (id: string) =>
  (chosen.value = chosen.value.includes(id) ? chosen.value.filter((other) => other !== id) : [...chosen.value, id]);

/** The newest values of each run's reward or loss, with the step at which they were read. */
const sparks = signal(new Map<string, { step: number; values: number[] }>());
const SPARK_POINTS = 40;
const SPARK_WAIT = 5000; // ms
let sparkTimer = 0;

/** Read the sparklines of runs that have trained since the last time. */
async function readSparks(ids: string[]): Promise<void> {
  const stale = ids.filter((id) => (known(id)?.peek().step ?? 0) > (sparks.peek().get(id)?.step ?? 0)).slice(0, 100);
  if (!stale.length) return;
  const steps = new Map(stale.map((id) => [id, known(id)?.peek().step ?? 0]));
  // The buckets of a request are as wide for a short run as for the longest one: ask for runs of like lengths together.
  const lengths = new Map<number, string[]>();
  for (const id of stale) {
    const length = Math.ceil(Math.log2(steps.get(id)!));
    lengths.set(length, [...(lengths.get(length) ?? []), id]);
  }
  const asked = [...lengths.values()].map((runs) => loadSeries({ runs, names: ["reward/mean", "train/loss"], points: SPARK_POINTS }));
  const series = (await Promise.all(asked)).flat();
  const next = new Map(sparks.peek());
  for (const id of stale) {
    const wanted = known(id)?.peek().kind === "sft" ? "train/loss" : "reward/mean";
    const own = series.find(({ run, name }) => run === id && name === wanted);
    next.set(id, { step: steps.get(id)!, values: (own?.mean ?? []).filter((value) => value !== null) });
  }
  sparks.value = next;
}

effect(() => {
  const ids = list.ids.value;
  for (const id of ids) known(id)?.value.step; // read again when one of them has trained
  if (sparkTimer || !ids.length) return;
  const wait = ids.every((id) => sparks.peek().has(id)) ? SPARK_WAIT : 0;
  sparkTimer = window.setTimeout(() => {
    sparkTimer = 0;
    readSparks(list.ids.peek()).catch(() => {}); // a list without sparklines is still a list
  }, wait);
});

export function Runs() {
  useEffect(() => void list.show(filter.value), [filterKey.value]);
  const ids = list.ids.value;
  const isFiltered = Object.keys(filter.value).length > 0;
  return (
    <main id="main" class="runs">
      <header class="bar">
        <h1 tabIndex={-1}>Runs</h1>
        <SearchField name="q" label="Search runs" placeholder="Search name, id, tag, note, model, recipe, dataset" />
        <select aria-label="State" value={filter.value.state ?? ""} onChange={(event) => ask({ state: event.currentTarget.value || null })}>
          <option value="">any state</option>
          {STATES.map((state) => <option key={state} value={state} selected={state === filter.value.state}>{state}</option>)}
        </select>
        {FILTERS.filter((name) => name !== "q" && name !== "state" && filter.value[name]).map((name) => (
          <button key={name} class="chip" onClick={() => ask({ [name]: null })} aria-label={`Remove filter ${name} ${filter.value[name]}`}>
            <span class="quiet">{name}</span> {filter.value[name]} ×
          </button>
        ))}
        {mayChange.value && <a class="button primary" href="/submit">Submit a run</a>}
      </header>
      <Problem error={list.error.value} />
      {!list.isLoaded.value && !ids.length ? <p class="quiet empty">Loading…</p> : ids.length ? <Table ids={ids} /> : isFiltered ? <p class="quiet empty">No run matches.</p> : <Welcome />}
      <More />
      <Chosen />
    </main>
  );
}

function Table({ ids }: { ids: string[] }) {
  const names = ids.map((id) => known(id)?.peek().name ?? "");
  const chainIds = ids.map((id) => known(id)?.peek().chain ?? null);
  const { data: chains } = useLoaded((signal) => get("/v1/chains", { query: { limit: 50 }, signal }), "chains", chainIds.join());
  const shown = new Set<string>();
  const rows = ids.flatMap((id, i) => {
    const chain = chainIds[i];
    if (!chain) return [<Row key={id} id={id} others={near(names, i)} />];
    // The runs of a chain stand together, where the newest of them stands in time.
    if (shown.has(chain)) return [];
    shown.add(chain);
    const members = ids.filter((_, j) => chainIds[j] === chain);
    const view = chains?.chains.find((each) => each.id === chain);
    return [
      <ChainRow key={chain} id={chain} view={view} />,
      ...members.map((member) => <Row key={member} id={member} others={near(names, ids.indexOf(member))} inChain />),
    ];
  });
  return (
    <div class="scroll">
      <table class="list">
        <thead>
          <tr>
            <th><span class="hidden">Choose</span></th><th>Run</th><th>State</th><th class="n">Reward / loss</th><th><span class="hidden">Curve</span></th>
            <th>Progress</th><th class="n">Submitted</th><th>Model</th><th>Data</th><th>Recipe</th><th class="n">Disk</th>
          </tr>
        </thead>
        <tbody>{rows}</tbody>
      </table>
    </div>
  );
}

const near = (names: string[], i: number) => names.slice(Math.max(0, i - 8), i + 9);
const last = (path: string) => path.split("/").filter(Boolean).at(-1) ?? path;

function ChainRow({ id, view }: { id: string; view: Chain | undefined }) {
  return (
    <tr class="chain">
      <td />
      <td colSpan={10}>
        <span class="quiet">chain</span> <b>{view?.name ?? id}</b> {view && <State state={view.state} />}{" "}
        {view && <span class="quiet">step {Math.min(view.at + 1, view.steps.length)} of {view.steps.length}{view.reason ? `, ${view.reason}` : ""}</span>}
      </td>
    </tr>
  );
}

function Row({ id, others, inChain }: { id: string; others: string[]; inChain?: boolean }) {
  const run = known(id)?.value;
  if (!run) return null;
  const value = run.reward ?? run.loss;
  const filterBy = (name: string, text: string | null | undefined, shown: string) =>
    text ? <button class="link" title={`${text}: show only these`} onClick={() => ask({ [name]: text }, { push: true })}>{shown}</button> : "–";
  return (
    <tr class={inChain ? "member" : ""}>
      <td><input type="checkbox" aria-label={`Compare ${run.name}`} checked={chosen.value.includes(id)} onChange={() => toggle(id)} /></td>
      <td class="main">
        <div>
          <a href={runPath(id)}><Name name={run.name} others={others} /></a>
          {run.tags?.map((tag) => <button key={tag} class="tag" title={tag} onClick={() => ask({ tag }, { push: true })}>{tag}</button>)}
        </div>
      </td>
      <td><State state={run.state} /> <small class="quiet phase" title={run.reason}>{phaseOf(run)}</small></td>
      <td class="n strong">{number(value)}</td>
      <td><Spark id={id} /></td>
      <td><Progress run={run} /></td>
      <td class="n quiet" title={moment(run.created)}>{ago(run.created)}</td>
      <td>{filterBy("model", run.model, last(run.model ?? ""))}</td>
      <td>{run.datasets?.length ? run.datasets.slice(0, 2).map((name, i) => <span key={name}>{i ? ", " : ""}{filterBy("dataset", name, name)}</span>) : "–"}</td>
      <td>{filterBy("recipe", run.recipe, run.recipe ?? "")}</td>
      <td class="n">{bytes(run.disk_bytes)}</td>
    </tr>
  );
}

/** What a run does, shorter than its state can say it. */
function phaseOf(run: Run): string {
  if (run.state === "queued" && run.queue_position) return `${ordinal(run.queue_position)} in line${run.priority ? `, priority ${run.priority}` : ""}`;
  if (OVER.has(run.state)) return run.state === "failed" ? run.reason : "";
  // How far it is stands beside this.
  if (run.eta_seconds != null && run.phase?.startsWith("trains step")) return `${duration(run.eta_seconds)} left`;
  return run.phase || run.reason;
}

const ordinal = (place: number) => `${place}${["th", "st", "nd", "rd"][place % 100 > 10 && place % 100 < 14 ? 0 : place % 10] ?? "th"}`;

function Spark({ id }: { id: string }) {
  const values = sparks.value.get(id)?.values ?? [];
  const [width, height] = [72, 18];
  if (values.length < 2) return <svg class="spark" width={width} height={height} aria-hidden="true" />;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const points = values.map((value, i) => {
    const y = high > low ? (value - low) / (high - low) : 0.5;
    return `${((i / (values.length - 1)) * width).toFixed(1)},${(height - 2 - y * (height - 4)).toFixed(1)}`;
  });
  return (
    <svg class="spark" width={width} height={height} aria-hidden="true">
      <polyline points={points.join(" ")} />
    </svg>
  );
}

function More() {
  const button = useRef<HTMLButtonElement>(null);
  const busy = useSignal(false);
  const more = async () => {
    if (busy.value) return;
    busy.value = true;
    await list.more().catch((error: unknown) => (list.error.value = error));
    busy.value = false;
  };
  if (list.next.value === null) return null;
  return <button ref={button} class="more" onClick={more}>Older runs</button>;
}

function Chosen() {
  const count = chosen.value.length;
  if (!count) return null;
  const target = `/compare?${chosen.value.map((id) => `runs=${encodeURIComponent(id)}`).join("&")}`;
  return (
    <div class="chosen" role="status">
      {count} chosen
      {count > 1 && <a class="button primary" href={target}>Compare</a>}
      <button onClick={() => (chosen.value = [])}>Clear</button>
    </div>
  );
}

function Welcome() {
  return (
    <section class="welcome">
      <h2>Nothing to watch yet</h2>
      <p class="quiet">Submit a run, here or from a terminal; it shows up in this list.</p>
      <pre><code>{"headrace datasets add train.jsonl --name mine\nheadrace submit grpo --watch \\\n    --set model.path=PATH \\\n    --set data.dataset=mine"}</code></pre>
      <p class="quiet">or with curl, with your key for KEY:</p>
      <pre><code id="curl">{curl()}</code></pre>
    </section>
  );
}

const curl = () =>
  `echo "Authorization: Bearer KEY" >header\n` +
  `curl -H @header -F name=mine \\\n  -F file=@train.jsonl \\\n  ${location.origin}/v1/datasets\n` +
  `curl -H @header \\\n  ${location.origin}/v1/runs \\\n  -H 'content-type: application/json' \\\n` +
  `  -d '{"recipe": "grpo", "config": {\n  "model": {"path": "PATH"},\n  "data": {"dataset": "mine"}}}'`;

/** A chain's address leads to the run of its present step. */
export function ChainView() {
  const id = parts.value[1] ?? "";
  const { data, error } = useLoaded((signal) => get("/v1/chains/{chain}", { path: { chain: id }, signal }), id);
  const run = data?.steps.findLast((step) => step.run)?.run;
  useEffect(() => {
    if (run) go(runPath(run), { replace: true });
  }, [run]);
  return (
    <main id="main">
      <header class="bar"><h1 tabIndex={-1}>{data?.name ?? "Chain"}</h1></header>
      {error ? <Problem error={error} /> : <p class="quiet empty">{data ? "None of its runs is submitted yet." : "Loading…"}</p>}
    </main>
  );
}

/** The chain that a run is a step of, above the run. */
export function ChainStrip({ id, run }: { id: string; run: Run }) {
  const { data: chain, error, again } = useLoaded((signal) => get("/v1/chains/{chain}", { path: { chain: id }, signal }), id, run.state);
  if (!chain) return <Problem error={error} />;
  const path = { chain: id };
  return (
    <nav class="strip" aria-label="Chain">
      <span class="quiet">chain</span> <b title={chain.note}>{chain.name}</b> <State state={chain.state} />
      <ol>
        {chain.steps.map((step) => (
          <li key={step.name}>
            {step.run ? <a href={runPath(step.run)} aria-current={step.run === run.id ? "page" : undefined}>{step.name}</a> : <span class="quiet">{step.name}</span>}{" "}
            <State state={step.state} />
          </li>
        ))}
      </ol>
      <a href={`/v1/chains/${encodeURIComponent(id)}/report`} target="_blank" rel="noopener">Report</a>
      {!OVER.has(chain.state) && chain.state !== "cancelling" && (
        <Action label="Cancel chain" sure={`Cancel ${chain.name}? Its present run writes a checkpoint first, and the chain can be resumed.`} act={() => post("/v1/chains/{chain}/cancel", { path }).then(again)} />
      )}
      {(chain.state === "failed" || chain.state === "cancelled") && <Action label="Resume chain" act={() => post("/v1/chains/{chain}/resume", { path, body: {} }).then(again)} />}
      {chain.reason && <p class="quiet">{chain.reason}</p>}
    </nav>
  );
}
