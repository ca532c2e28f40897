// Runs side by side: their charts on one another, their configs, their evaluations.

import { type RunRecord, type Schemas, get, send } from "./api";
import { Charts } from "./charts";
import { ConfigTable } from "./config";
import { interval } from "./evaluations";
import { number } from "./format";
import { Name, Problem, Progress, State, useLoaded } from "./parts";
import { ask, query, runPath } from "./router";
import { named } from "./schema";
import { known } from "./store";

type Evaluation = Schemas["EvaluationRecord"];
type Comparison = Schemas["EvaluationComparison"];
const TABS = ["charts", "config", "evaluations"];

export function Compare() {
  const ids = [...new Set(query.value.getAll("runs").flatMap((text) => text.split(",")).filter(Boolean))];
  const key = ids.join();
  // A run that trains goes on: its summary comes with the stream.
  const live = ids.map((id) => `${known(id)?.value.step} ${known(id)?.value.state}`).join();
  const { data: runs, error } = useLoaded(
    (signal) => Promise.all(ids.map((run) => get("/v1/runs/{run}", { path: { run }, signal }) as Promise<RunRecord>)),
    key,
    live,
  );
  const tab = query.value.get("tab") ?? "charts";
  return (
    <main id="main">
      <header class="bar"><h1 tabIndex={-1}>Compare</h1></header>
      {!ids.length && <p class="quiet empty">Choose runs in the list of <a href="/">runs</a>, and then Compare.</p>}
      <Problem error={error} />
      {runs && runs.length > 0 && (
        <>
          <Heads runs={runs} />
          <nav class="tabs" aria-label="Parts of the comparison">
            {TABS.map((name) => {
              const to = new URLSearchParams(query.value);
              to.set("tab", name);
              return <a key={name} href={`/compare?${to}`} aria-current={name === tab ? "page" : undefined}>{name}</a>;
            })}
          </nav>
          <div class="tab">
            {tab === "charts" && <Overlay runs={runs} fresh={live} />}
            {tab === "config" && <Configs runs={runs} />}
            {tab === "evaluations" && <Evaluations runs={runs} />}
          </div>
        </>
      )}
    </main>
  );
}

const labels = (runs: RunRecord[]) => {
  const names = runs.map(({ name }) => name);
  return runs.map(({ id, name }) => (names.filter((other) => other === name).length > 1 ? `${name} (${id})` : name));
};

function Heads({ runs }: { runs: RunRecord[] }) {
  const names = labels(runs);
  const without = (id: string) => {
    const rest = new URLSearchParams(query.value);
    rest.delete("runs");
    for (const run of runs) if (run.id !== id) rest.append("runs", run.id);
    return `/compare?${rest}`;
  };
  return (
    <div class="scroll heads">
      <table class="list">
        <tbody>
          {runs.map((run, i) => (
            <tr key={run.id}>
              <td><i class={`swatch c${i % 8}`} /></td>
              <td class="main"><a href={runPath(run.id)}><Name name={names[i]!} others={names} /></a></td>
              <td><State state={run.state} /></td>
              <td class="n strong">{number(run.reward ?? run.loss)}</td>
              <td><Progress run={run} /></td>
              <td class="quiet">{run.recipe}</td>
              <td>{runs.length > 1 && <a href={without(run.id)} aria-label={`Leave out ${run.name}`}>×</a>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Overlay({ runs, fresh }: { runs: RunRecord[]; fresh: string }) {
  const ids = runs.map(({ id }) => id);
  const { data, error } = useLoaded(
    (signal) => Promise.all(ids.map((id) => send(`/v1/runs/${encodeURIComponent(id)}/series/names`, { signal }) as Promise<{ names: { name: string }[] }>)),
    ids.join(),
    fresh,
  );
  if (!data) return error ? <Problem error={error} /> : <p class="quiet empty">Loading…</p>;
  const names = [...new Set(data.flatMap(({ names }) => names.map(({ name }) => name)))];
  const all = labels(runs);
  return <Charts runs={runs.map(({ id }, i) => ({ id, label: all[i]! }))} names={names} kind={runs.every(({ kind }) => kind === "sft") ? "sft" : "rl"} fresh={fresh} />;
}

function Configs({ runs }: { runs: RunRecord[] }) {
  const isWhole = query.value.get("config") === "whole";
  const all = labels(runs);
  return (
    <>
      <div class="toolbar">
        <label class="choice"><input type="checkbox" checked={isWhole} onChange={() => ask({ config: isWhole ? null : "whole" })} /> Also keys that are equal</label>
      </div>
      <ConfigTable configs={runs.map((run, i) => ({ label: all[i]!, config: named(run) }))} isDiff={!isWhole} />
    </>
  );
}

/** The newest evaluation of each held-out set of each run, and how the first run differs from the others. */
function Evaluations({ runs }: { runs: RunRecord[] }) {
  const ids = runs.map(({ id }) => id);
  const { data, error } = useLoaded(
    (signal) => Promise.all(ids.map((run) => get("/v1/runs/{run}/evaluations", { path: { run }, signal }))),
    ids.join(),
  );
  if (!data) return error ? <Problem error={error} /> : <p class="quiet empty">Loading…</p>;
  const all = labels(runs);
  const newest = data.map(({ evaluations }) => {
    const done = evaluations.filter(({ state }) => state === "done").sort((a, b) => a.step - b.step);
    return new Map(done.map((each) => [each.name, each]));
  });
  const sets = [...new Set(newest.flatMap((each) => [...each.keys()]))].sort();
  if (!sets.length) return <p class="quiet empty">None of these runs has a finished evaluation.</p>;
  return (
    <>
      {sets.map((set) => (
        <section key={set} class="group">
          <h2>{set}</h2>
          <div class="scroll">
            <table class="list">
              <thead><tr><th>Run</th><th class="n">Step</th><th class="n">Accuracy</th><th class="n">Reward</th><th class="n">Tokens</th><th>Against the first run, row by row</th></tr></thead>
              <tbody>{runs.map((run, i) => <Line key={run.id} label={all[i]!} evaluation={newest[i]!.get(set)} first={i ? newest[0]!.get(set) : undefined} />)}</tbody>
            </table>
          </div>
        </section>
      ))}
    </>
  );
}

function Line({ label, evaluation, first }: { label: string; evaluation: Evaluation | undefined; first: Evaluation | undefined }) {
  if (!evaluation) return <tr><td>{label}</td><td colSpan={5} class="quiet">not evaluated</td></tr>;
  const metrics = evaluation.metrics ?? {};
  return (
    <tr>
      <td>{label}</td>
      <td class="n">{evaluation.step}</td>
      <td class="n">{interval(metrics, "accuracy")}</td>
      <td class="n">{interval(metrics, "reward")}</td>
      <td class="n">{number(metrics["tokens_mean"], 1)}</td>
      <td>{first && <Paired evaluation={evaluation} against={first} />}</td>
    </tr>
  );
}

function Paired({ evaluation, against }: { evaluation: Evaluation; against: Evaluation }) {
  const path = { run: evaluation.run, evaluation: evaluation.id };
  const { data, error } = useLoaded(
    (signal) => get("/v1/runs/{run}/evaluations/{evaluation}/comparison", { path, query: { against: `${against.run}/${against.id}`, limit: 1 }, signal }),
    `${evaluation.run} ${evaluation.id} ${against.run} ${against.id}`,
  );
  if (!data) return <Problem error={error} />;
  return <span class="n">{difference(data as Comparison)}</span>;
}

function difference({ comparison, better, worse }: Comparison): string {
  const { metric, difference, low, high, p } = comparison;
  const sign = difference > 0 ? "+" : "";
  return `${metric} ${sign}${number(difference)} (${number(low)} to ${number(high)}), p = ${number(p, 3)}; better on ${better} rows, worse on ${worse}`;
}
