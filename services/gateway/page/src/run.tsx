// One run: what it is, what it does, why, and its tabs.

import { useEffect } from "preact/hooks";
import { Refusal, type Run, type RunRecord, get, mayChange, post, remove, send } from "./api";
import { Charts } from "./charts";
import { Checkpoints } from "./checkpoints";
import { ConfigTable, changes, written } from "./config";
import { Edit, EditButton, Edits } from "./edit";
import { Evaluations } from "./evaluations";
import { Events, Written, checkpoints, follow } from "./events";
import { ago, bytes, duration, moment, number } from "./format";
import { on } from "./live";
import { Action, Chip, Marked, OVER, Problem, State, useLoaded } from "./parts";
import { go, parts, runPath } from "./router";
import { Report } from "./report";
import { Rollouts } from "./rollouts";
import { ChainStrip } from "./runs";
import { named } from "./schema";
import { keep, known } from "./store";
import { WorkerTable, gpusOf } from "./workers";

const TABS = ["charts", "rollouts", "evaluations", "checkpoints", "config", "events", "workers", "report"] as const;
type Tab = (typeof TABS)[number];
const isTab = (name: string | undefined): name is Tab => TABS.includes(name as Tab);

export function RunView() {
  const id = parts.value[1] ?? "";
  return <One key={id} id={id} />;
}

function One({ id }: { id: string }) {
  const summary = known(id)?.value;
  const state = summary?.state ?? "";
  const { data: record, error, again } = useLoaded(
    async (signal) => {
      const record = (await get("/v1/runs/{run}", { path: { run: id }, signal })) as RunRecord;
      if (!known(record.id)) keep(record); // before it is shown, so that what shows it follows the stream
      return record;
    },
    id,
    state,
  );
  useEffect(() => {
    if (!record) return;
    // A name or a beginning of an id leads to the run: its address has the id.
    if (record.id !== id) go(runPath(record.id, parts.peek()[2]), { replace: true });
  }, [record]);
  useEffect(() => on("reset", again), []);
  useEffect(() => on("runs", ({ deleted }) => deleted.includes(id) && again()), [id]);
  const isGone = error instanceof Refusal && error.status === 404; // also a run that was deleted while it is shown
  if (!record || isGone) {
    return (
      <main id="main">
        <header class="bar"><h1 tabIndex={-1}>{error ? "Not found" : "Run"}</h1></header>
        {error ? <Problem error={error} /> : <p class="quiet empty">Loading…</p>}
      </main>
    );
  }
  // The stream has newer values than the record, which is read when the state changes.
  const newest = summary && summary.id === record.id ? summary : record;
  return <Shown record={{ ...record, ...newest }} again={again} />;
}

function Shown({ record, again }: { record: RunRecord; again: () => void }) {
  const wanted = parts.value[2];
  const fallback: Tab = record.state === "failed" && !record.step ? "rollouts" : "charts";
  const tab = isTab(wanted) ? wanted : fallback;
  const isOver = OVER.has(record.state);
  useEffect(() => {
    document.title = `${record.name} · ${record.state} · Headrace`;
  }, [record.name, record.state]);
  // Checkpoints are marks in the charts; the events tab follows the same events by itself.
  useEffect(() => (tab === "events" ? undefined : follow(record.id)), [record.id, tab === "events"]);
  // On a phone the tabs are wider than the screen.
  useEffect(() => document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }), [tab]);
  const isThere = (name: Tab) => (name === "rollouts" ? record.kind !== "sft" : name !== "report" || record.step > 0 || record.state === "failed");
  return (
    <main id="main" class="run">
      {record.chain && <ChainStrip id={record.chain} run={record} />}
      <header class="bar">
        <h1 tabIndex={-1}>{record.name}</h1>
        <State state={record.state} />
        <code class="quiet">{record.id}</code>
        <Actions run={record} />
      </header>
      <Status run={record} isOver={isOver} />
      <Edit run={record} done={again} />
      <Chips run={record} />
      <Edits run={record} />
      <Warnings run={record} />
      <nav class="tabs" aria-label="Parts of the run">
        {TABS.filter(isThere).map((name) => (
          <a key={name} href={runPath(record.id, name)} aria-current={name === tab ? "page" : undefined}>{name === "events" ? "events and logs" : name}</a>
        ))}
      </nav>
      <div class="tab">
        {tab === "charts" && <RunCharts run={record} />}
        {tab === "rollouts" && <Rollouts run={record.id} state={record.state} step={record.step} isOver={isOver} />}
        {tab === "evaluations" && <Evaluations run={record.id} fresh={`${record.state} ${record.step}`} />}
        {tab === "checkpoints" && <Checkpoints run={record.id} fresh={`${record.state} ${record.committed_step}`} />}
        {tab === "config" && <ConfigTable configs={[{ label: "Value", config: named(record) }]} />}
        {tab === "events" && <Events run={record.id} />}
        {tab === "workers" && <WorkerTable pool={record.pool} />}
        {tab === "report" && <Report run={record} />}
      </div>
    </main>
  );
}

function RunCharts({ run }: { run: RunRecord }) {
  const { data, error } = useLoaded((signal) => send(`/v1/runs/${run.id}/series/names`, { signal }) as Promise<{ names: { name: string }[] }>, run.id, `${run.step} ${run.state}`);
  if (!data) return error ? <Problem error={error} /> : <p class="quiet empty">Loading…</p>;
  return (
    <Charts
      runs={[{ id: run.id, label: run.name }]}
      names={data.names.map(({ name }) => name)}
      kind={run.kind}
      fresh={`${run.step} ${run.state} ${data.names.length}`}
      marks={checkpoints()}
    />
  );
}

/** What the run does, why, and how long it still takes: in sentences. */
function Status({ run, isOver }: { run: RunRecord; isOver: boolean }) {
  const share = run.max_steps ? Math.min(1, run.step / run.max_steps) : 0;
  const { data: why } = useLoaded(
    (signal) => (isOver ? Promise.resolve(null) : get("/v1/runs/{run}/why", { path: { run: run.id }, signal })),
    run.id,
    `${run.state} ${run.step} ${run.phase}`,
  );
  const sentence = isOver ? run.reason : (why?.words ?? run.reason);
  const started = run.started ?? run.created;
  const gpus = gpusOf(run);
  const hours = ((isOver && run.finished ? run.finished : Date.now() / 1000) - started) / 3600;
  const price = why?.cost;
  const money = (amount: number) => `${number(amount, 2)} ${price?.currency ?? ""}`.trim();
  return (
    <section class="status" aria-label="Now">
      <div class="line">
        <span class="phase">{run.phase || (isOver ? "" : run.state)}</span>
        {!run.phase?.includes("step") && <span class="n">{run.max_steps ? `step ${run.step} of ${run.max_steps}` : `step ${run.step}`}</span>}
        {run.reward != null && <span class="n">reward {number(run.reward)}</span>}
        {run.loss != null && <span class="n">loss {number(run.loss)}</span>}
        {run.eta_seconds != null && <span class="n">{duration(run.eta_seconds)} left</span>}
        <span class="n quiet" title={moment(run.created)}>submitted {ago(run.created)}</span>
        {run.started && <span class="n quiet">{isOver && run.finished ? `took ${duration(run.finished - started)}` : `runs for ${duration(Date.now() / 1000 - started)}`}</span>}
        {run.started && gpus > 0 && <span class="n quiet" title={`${gpus} ${gpus === 1 ? "GPU" : "GPUs"}: the learner's, and those of the workers that are up`}>{number(gpus * hours, 2)} GPU-hours</span>}
        {run.started && price && (
          <span class="n quiet" title={`${money(price.per_hour)} an hour for the GPUs that work on it now; ${money(price.per_1000_samples)} for 1,000 trained samples`}>
            about {money(price.per_hour * hours)}{run.eta_seconds != null && `, and ${money((price.per_hour * run.eta_seconds) / 3600)} to its end`}
          </span>
        )}
        {run.disk_bytes ? <span class="n quiet">{bytes(run.disk_bytes)} on disk</span> : null}
      </div>
      <div class="bar" role="progressbar" aria-label="Progress" aria-valuenow={Math.round(share * 100)} aria-valuemin={0} aria-valuemax={100}>
        <i style={{ width: `${share * 100}%` }} />
      </div>
      {(sentence || !isOver) && <p class={run.state === "failed" ? "reason problem" : "reason"}><Marked text={sentence ?? ""} /></p>}
      {run.state === "failed" && <LastWords run={run} />}
    </section>
  );
}

/** The last errors that a failed run's processes logged, beside its reason. */
function LastWords({ run }: { run: RunRecord }) {
  const { data } = useLoaded((signal) => get("/v1/runs/{run}/logs", { path: { run: run.id }, query: { newest: 8, level: "error" }, signal }), run.id);
  const lines = data?.logs.filter(({ text }) => !run.reason || !text.includes(run.reason.slice(0, 60))).slice(-3) ?? [];
  return (
    <>
      {lines.length > 0 && <ol class="events last" aria-label="Last errors">{lines.map((line) => <Written key={line.id} line={line} />)}</ol>}
      <p><a href={`${runPath(run.id, "events")}?level=warning`}>{lines.length ? "All warnings and errors of its processes" : "What its processes logged"}</a></p>
    </>
  );
}

function Chips({ run }: { run: RunRecord }) {
  const recipe = run.recipe ?? null;
  const { data } = useLoaded(
    (signal) => (recipe ? get("/v1/recipes/{name}", { path: { name: recipe }, signal }).catch(() => null) : Promise.resolve(null)),
    recipe ?? "",
  );
  const changed = data ? changes(run.config, data.config) : [];
  const config = run.config as { model?: { path?: string } };
  const model = run.model || config.model?.path || "";
  const datasets = run.datasets?.length ? run.datasets : Object.values(run.dataset_names ?? {});
  return (
    <ul class="chips" aria-label="What the run is">
      {model && <li><Chip label="model" title={model}>{model.split("/").filter(Boolean).at(-1)}</Chip></li>}
      {[...new Set(datasets)].map((name) => <li key={name}><Chip label="data"><a href={`/datasets/${encodeURIComponent(name)}`}>{name}</a></Chip></li>)}
      {recipe && <li><Chip label="recipe">{recipe}</Chip></li>}
      {changed.slice(0, 12).map(([key, before, after]) => (
        <li key={key}><Chip label={key} title={`The recipe has ${written(before)}`}>{written(after)}</Chip></li>
      ))}
      {changed.length > 12 && <li class="quiet">and {changed.length - 12} more</li>}
      {run.tags?.map((tag) => <li key={tag}><a class="tag" href={`/?tag=${encodeURIComponent(tag)}`}>{tag}</a></li>)}
      {run.resume_from && <li><Chip label={run.is_fork ? "forked from" : "continues"}><a href={runPath(run.resume_from)}>{run.resume_from}</a>{run.resume_step ? ` at step ${run.resume_step}` : ""}</Chip></li>}
      <li><Chip label="pool">{run.pool}</Chip></li>
      {run.priority !== 0 && <li><Chip label="priority">{run.priority}</Chip></li>}
      {run.submitter && <li><Chip label="by">{run.submitter}</Chip></li>}
      {run.notes && <li class="quiet notes">{run.notes}</li>}
    </ul>
  );
}

function Warnings({ run }: { run: RunRecord }) {
  const all = [...(run.damage ? [run.damage] : []), ...(run.warnings ?? [])];
  if (!all.length) return null;
  return (
    <details class="warnings" open={all.length < 3 && !OVER.has(run.state)}>
      <summary>{all.length === 1 ? "1 warning" : `${all.length} warnings`} of the submission</summary>
      <ul>{all.map((warning) => <li key={warning}>{warning}</li>)}</ul>
    </details>
  );
}

/** The actions that work now. The gateway is asked whether a run can be resumed before the button is offered. */
function Actions({ run }: { run: RunRecord }) {
  const path = { run: run.id };
  const isOver = OVER.has(run.state);
  const mayResume = mayChange.value && (run.state === "failed" || run.state === "cancelled") && run.checkpoint != null && !run.damage;
  const { data: canResume, error } = useLoaded(
    (signal) => (mayResume ? post("/v1/runs", { query: { dry_run: true }, body: { resume_from: run.id, priority: run.priority }, signal }) : Promise.resolve(null)),
    `${run.id} ${run.state}`,
  );
  return (
    <span class="actions">
      <EditButton />
      {!isOver && run.state !== "cancelling" && (
        <Action
          label="Cancel"
          sure={run.state === "queued" ? `Cancel ${run.name}? It has not begun.` : `Cancel ${run.name}? It writes a checkpoint first, and can be resumed.`}
          act={() => post("/v1/runs/{run}/cancel", { path }).then((cancelled) => keep(cancelled as Run))}
        />
      )}
      {(run.state === "starting" || run.state === "running") && !run.paused_by && (
        <Action label="Pause" act={() => post("/v1/runs/{run}/pause", { path }).then((paused) => keep(paused as Run))} />
      )}
      {run.paused_by && !isOver && run.state !== "cancelling" && (
        <Action label="Resume" act={() => post("/v1/runs/{run}/resume", { path }).then((resumed) => keep(resumed as Run))} />
      )}
      {mayResume && canResume && (
        <Action
          label={`Resume at step ${run.committed_step}`}
          act={() => post("/v1/runs", { body: { resume_from: run.id, priority: run.priority } }).then((made) => go(runPath((made as Run).id)))}
        />
      )}
      {mayResume && error ? <span class="quiet">It cannot be resumed: {error instanceof Error ? error.message : ""}</span> : null}
      {isOver && !run.damage && mayChange.value && <a class="button" href={`/submit?from=${run.id}`}>Run again with a change</a>}
      {isOver && <Action label="Delete" kind="danger" sure={whatIsLost(run)} act={() => remove("/v1/runs/{run}", { path }).then(() => go("/"))} />}
    </span>
  );
}

/** The question before a deletion: it names what there is, and nothing else. */
function whatIsLost(run: RunRecord): string {
  const lost = [
    run.checkpoint ? `its checkpoint of step ${run.committed_step}` : null,
    run.step ? "the metrics and answers of its steps" : null,
  ].filter(Boolean);
  const named = `Delete ${run.name} (${run.id})?`;
  return lost.length ? `${named} This also removes ${lost.join(", and ")}, for good.` : `${named} It has trained no step and has no checkpoint.`;
}
