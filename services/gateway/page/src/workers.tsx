// Rollout workers: what each does, and how well.

import { signal } from "@preact/signals";
import { get } from "./api";
import { ago, bytes, duration, number } from "./format";
import { type Worker, on } from "./live";
import { Problem, State, useLoaded } from "./parts";
import { runPath } from "./router";

const told = signal<Worker[] | null>(null);
on("workers", ({ workers }) => (told.value = workers));

export function Workers() {
  return (
    <main id="main">
      <header class="bar"><h1 tabIndex={-1}>Workers</h1></header>
      <WorkerTable />
    </main>
  );
}

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
            <th class="n">Update</th><th class="n">Pause</th><th class="n">Canary</th><th>GPU</th><th class="n">Memory</th><th class="n">Restarts</th><th class="n">Seen</th><th>Error</th>
          </tr>
        </thead>
        <tbody>{workers.map((worker) => <Row key={worker.id} worker={worker} />)}</tbody>
      </table>
    </div>
  );
}

function Row({ worker: w }: { worker: Worker }) {
  const isBad = w.state === "unhealthy" || w.state === "silent";
  const load = w.host_load;
  return (
    <tr>
      <td title={`${w.host}, process ${w.pid}, pool ${w.pool}`}>{w.id}</td>
      <td><State state={w.state} tone={isBad ? "failed" : w.run ? "running" : ""} /></td>
      <td>{w.run ? <a href={runPath(w.run)}>{w.run}</a> : "–"}</td>
      <td class="n">{w.version ?? "–"}</td>
      <td class="n" title={`${w.scoring} of them are scored`}>{w.groups_in_flight}</td>
      <td class="n strong">{number(w.tokens_per_second, 0)}</td>
      <td class="n">{w.policy_calls}</td>
      <td class="n">{w.update_seconds == null ? "–" : duration(w.update_seconds)}</td>
      <td class="n">{w.pause_seconds == null ? "–" : `${number(w.pause_seconds, 2)} s`}</td>
      <td class="n" title="Mean difference to the learner's log-probabilities, in nats">{number(w.canary_gap, 4)}</td>
      <td>{w.devices?.map(({ name }) => name).join(", ") || (w.gpus ? `${w.gpus} GPUs` : "CPU")}</td>
      <td class="n">{load ? `${bytes(load.memory)}, ${bytes(load.free_memory)} free` : "–"}</td>
      <td class="n">{w.restarts}</td>
      <td class="n">{ago(w.heartbeat)}</td>
      <td class="wide">{w.error}</td>
    </tr>
  );
}
