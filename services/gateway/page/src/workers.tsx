// Rollout workers: what each does, and how well.

import { signal } from "@preact/signals";
import { type RunRecord, get } from "./api";
import { InstallationLog } from "./events";
import { ago, bytes, duration, number, percent } from "./format";
import { type Worker, on } from "./live";
import { Problem, State, useLoaded } from "./parts";
import { runPath } from "./router";
import { known } from "./store";

const told = signal<Worker[] | null>(null);
on("workers", ({ workers }) => (told.value = workers));

/** How many GPUs a run uses: those of its learner, and those of its pool's workers that are up. GPUs that both use in turns count once. */
export function gpusOf({ pool, computation }: RunRecord): number {
  const how = (computation ?? {}) as Record<string, string>;
  const learner = Number(/^(\d+) × (?!rank)/.exec(how["device"] ?? "")?.[1] ?? 0);
  const workers = new Set((told.value ?? []).filter((worker) => worker.pool === pool).flatMap(({ devices }) => (devices ?? []).map(({ uuid }) => uuid))).size;
  return "gpu" in how ? Math.max(learner, workers) : learner + workers;
}

export function Workers() {
  return (
    <main id="main">
      <header class="bar"><h1 tabIndex={-1}>Workers</h1></header>
      <WorkerTable />
      <InstallationLog />
    </main>
  );
}

const COLUMNS = 16;
const GIB = 2 ** 30;

/** All workers, or those of a run's pool. */
export function WorkerTable({ pool }: { pool?: string }) {
  const { data, error } = useLoaded((signal) => get("/v1/workers", { signal }), "workers");
  const workers = (told.value ?? data?.workers ?? []).filter((worker) => pool === undefined || worker.pool === pool);
  if (!data && !told.value) return error ? <Problem error={error} /> : <p class="quiet empty">Loading…</p>;
  if (!workers.length) return <p class="quiet empty">No worker {pool ? `of the pool ${pool} ` : ""}is up. <code>headrace up</code> starts one; <code>headrace rollout</code> starts more on other machines.</p>;
  return (
    <div class="scroll">
      <table class="list">
        <thead>
          <tr>
            <th>Worker</th><th>State</th><th>Run</th><th class="n">Version</th><th class="n">Groups</th><th class="n">Tokens/s</th><th class="n">Calls</th>
            <th class="n">Update</th><th class="n">Pause</th><th class="n">Canary</th><th>GPU</th><th class="n">GPU memory</th><th class="n">Busy</th><th class="n">Host memory</th><th class="n">Restarts</th><th class="n">Seen</th>
          </tr>
        </thead>
        <tbody>{workers.map((worker) => [
            <Row key={worker.id} worker={worker} />,
            worker.error && <tr key={`${worker.id} error`} class="error"><td /><td colSpan={COLUMNS - 1} class="problem">{worker.error}</td></tr>,
          ])}</tbody>
      </table>
    </div>
  );
}

function Row({ worker: w }: { worker: Worker }) {
  const isBad = w.state === "unhealthy" || w.state === "silent";
  const load = w.host_load;
  const loads = w.gpu_loads ?? [];
  const busy = loads.flatMap((at) => (at.busy === null ? [] : [at.busy]));
  const usual = w.usual_start_seconds == null ? "" : ` of about ${number(w.usual_start_seconds, 0)}`;
  const starting = w.state !== "starting" || w.starting_seconds == null ? "" : ` ${number(w.starting_seconds, 0)}${usual} s`;
  return (
    <tr>
      <td title={`${w.host}, process ${w.pid}, pool ${w.pool}`}>{w.id}{w.worker_class && <small class="quiet"> {w.worker_class}</small>}</td>
      <td><State state={w.state} tone={isBad ? "failed" : w.run ? "running" : ""} />{starting && <small class="quiet">{starting}</small>}</td>
      <td class="run">{w.run ? <Model model={w.run} /> : !w.models?.length && !w.loading && "–"}
        {w.models?.map((model) => <div key={model}>serves <Model model={model} /></div>)}
        {w.loading && <div>loads <Model model={w.loading} /></div>}
      </td>
      <td class="n">{w.version ?? "–"}</td>
      <td class="n" title={`${w.scoring} of them are scored`}>{w.groups_in_flight}</td>
      <td class="n strong">{number(w.tokens_per_second, 0)}</td>
      <td class="n">{w.policy_calls}</td>
      <td class="n">{w.update_seconds == null ? "–" : duration(w.update_seconds)}</td>
      <td class="n">{w.pause_seconds == null ? "–" : `${number(w.pause_seconds, 2)} s`}</td>
      <td class="n" title="Mean difference to the learner's log-probabilities, in nats">{number(w.canary_gap, 4)}</td>
      <td title={w.devices?.map(({ name }) => name).join(", ")}>{gpuNames(w)}</td>
      <td class="n" title={each(loads, (at) => `${bytes(at.used)} used`)}>{loads.length ? `${number(sum(loads, ({ used }) => used) / GIB, 0)} of ${number(sum(w.devices ?? [], ({ memory }) => memory) / GIB, 0)} GiB` : "–"}</td>
      <td class="n" title={each(loads, (at) => `${percent(at.busy, 0)} busy`)}>{busy.length ? percent(sum(busy, (share) => share) / busy.length, 0) : "–"}</td>
      <td class="n" title={load ? `${bytes(load.free_memory)} are free on the host` : undefined}>{load ? bytes(load.memory) : "–"}</td>
      <td class="n">{w.restarts}</td>
      <td class="n">{ago(w.heartbeat)}</td>
    </tr>
  );
}

/** A run, or a step of one as `RUN@STEP`: its name, which leads to it. */
function Model({ model }: { model: string }) {
  const [run = "", step] = model.split("@");
  const name = known(run)?.value.name ?? run;
  return <><a href={runPath(run)} title={model}>{name}</a>{step && `@${step}`}</>;
}

const sum = <T,>(all: T[], value: (each: T) => number) => all.reduce((total, each) => total + value(each), 0);
const each = <T,>(all: T[], words: (each: T) => string) => all.map((one, i) => `GPU ${i}: ${words(one)}`).join("\n");

/** The GPUs of a worker: `2 × H100 80GB HBM3`. */
function gpuNames({ devices = [], gpus }: Worker): string {
  const counts = new Map<string, number>();
  for (const { name } of devices) counts.set(name, (counts.get(name) ?? 0) + 1);
  const named = [...counts].map(([name, count]) => `${count > 1 ? `${count} × ` : ""}${name.replace(/^NVIDIA /, "")}`);
  return named.join(", ") || (gpus ? `${gpus} ${gpus === 1 ? "GPU" : "GPUs"}` : "CPU");
}
