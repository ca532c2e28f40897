// The evaluations of a run, and the answers of the chosen one, or the rows of its set over the steps.

import { type Schemas, get } from "./api";
import { Reasons } from "./answers";
import { number, percent } from "./format";
import { Choice, Problem, State, useLoaded } from "./parts";
import { ask, query } from "./router";

type Evaluation = Schemas["EvaluationRecord"];
type Verdict = "correct" | "mixed" | "wrong" | "unscored";

export function Evaluations({ run, fresh }: { run: string; fresh: unknown }) {
  const { data, error } = useLoaded((signal) => get("/v1/runs/{run}/evaluations", { path: { run }, signal }), run, JSON.stringify(fresh));
  const chosen = query.value.get("evaluation");
  const isOver = query.value.get("rows") === "steps";
  if (!data) return error ? <Problem error={error} /> : <p class="quiet empty">Loading…</p>;
  if (!data.evaluations.length) return <p class="quiet empty">This run has no evaluation. <code>evaluation</code> in its config adds them.</p>;
  return (
    <>
      <Problem error={error} />
      <div class="scroll">
        <table class="list">
          <thead>
            <tr><th class="n">Step</th><th>Held-out set</th><th>State</th><th class="n">Accuracy</th><th class="n">Pass@k</th><th class="n">Reward</th><th class="n">Tokens</th><th class="n">Truncated</th></tr>
          </thead>
          <tbody>{data.evaluations.map((each) => <Line key={each.id} evaluation={each} isChosen={each.id === chosen} />)}</tbody>
        </table>
      </div>
      {chosen && (
        <>
          <nav class="tabs below" aria-label="Parts of the evaluation">
            <button class="link" aria-pressed={!isOver} onClick={() => ask({ rows: null, row: null })}>Answers</button>
            <button class="link" aria-pressed={isOver} onClick={() => ask({ rows: "steps", row: null })}>Rows over steps</button>
          </nav>
          {isOver ? <OverSteps run={run} evaluation={chosen} /> : <Rows key={chosen} run={run} evaluation={chosen} />}
        </>
      )}
    </>
  );
}

function Line({ evaluation, isChosen }: { evaluation: Evaluation; isChosen: boolean }) {
  const { id, step, name, state, reason, metrics = {}, answered, rows } = evaluation;
  const at = Math.max(0, ...Object.keys(metrics).map((metric) => Number(/^pass_at_(\d+)$/.exec(metric)?.[1] ?? 0)));
  return (
    <tr aria-current={isChosen ? "true" : undefined}>
      <td class="n"><button class="link" disabled={!answered} title={`Answers of ${id}`} onClick={() => ask({ evaluation: isChosen ? null : id }, { push: true })}>{step}</button></td>
      <td>{name}</td>
      <td>{state === "open" ? `${answered} of ${rows} rows` : <><State state={state} /> {reason}</>}</td>
      <td class="n">{interval(metrics, "accuracy")}</td>
      <td class="n">{at ? `${number(metrics[`pass_at_${at}`])} (k = ${at})` : "–"}</td>
      <td class="n">{interval(metrics, "reward")}</td>
      <td class="n">{number(metrics["tokens_mean"], 1)}</td>
      <td class="n">{percent(metrics["truncated"])}</td>
    </tr>
  );
}

/** A mean with its interval at 95 %. */
export function interval(metrics: Record<string, number>, name: string): string {
  const ends = [metrics[`${name}_low`], metrics[`${name}_high`]];
  const mean = number(metrics[name]);
  return ends.includes(undefined) ? mean : `${mean} (${number(ends[0])} to ${number(ends[1])})`;
}

const VERDICTS: [string, string][] = [["", "all rows"], ["correct", "all samples right"], ["mixed", "some right"], ["wrong", "none right"], ["unscored", "not scored"]];

function Rows({ run, evaluation }: { run: string; evaluation: string }) {
  const verdict = query.value.get("verdict") ?? "";
  const only = query.value.get("row");
  const { data, error } = useLoaded(
    (signal) => get("/v1/runs/{run}/evaluations/{evaluation}/answers", { path: { run, evaluation }, query: { limit: 50, verdict: (verdict || null) as Verdict | null, row: only === null ? null : Number(only) }, signal }),
    `${run} ${evaluation} ${verdict} ${only}`,
  );
  return (
    <section aria-label={`Answers of ${evaluation}`}>
      <div class="toolbar">
        <h2>Answers of {evaluation}</h2>
        <Choice name="verdict" label="Show" options={VERDICTS} />
        {only !== null && <button onClick={() => ask({ row: null })}>Row {only} ×</button>}
        {data && <span class="quiet">{data.rows.length} of {data.total} rows</span>}
      </div>
      <Problem error={error} />
      <ol class="answers">
        {data?.rows.map((row) => (
          <li key={row.row}>
            <p class="facts">
              <b>row {row.row}</b> {row.category !== null && <span>{row.category}</span>} {row.error && <span>{row.error}</span>}
              {row.reference != null && <span>reference {(typeof row.reference === "string" ? row.reference : JSON.stringify(row.reference)).slice(0, 300)}</span>}
            </p>
            <pre class="quiet">{row.prompt}</pre>
            {row.samples.map((sample, i) => (
              <div key={i} class="sample">
                <p class="facts"><b>reward {number(sample.reward)}</b> <span>{sample.status}</span> <span>{sample.tokens} tokens{sample.truncated ? ", truncated" : ""}</span></p>
                <pre>{sample.text}</pre>
                <Reasons reasons={sample.reasons ?? {}} />
              </div>
            ))}
          </li>
        ))}
      </ol>
    </section>
  );
}

const CHANGES: [string, string][] = [["", "all rows"], ["better", "better at the end"], ["worse", "worse at the end"], ["unsteady", "up and down"], ["steady", "always equal"]];
type Change = "better" | "worse" | "unsteady" | "steady";

/** A grid of the rows of a held-out set and the steps of its evaluations. */
function OverSteps({ run, evaluation }: { run: string; evaluation: string }) {
  const change = query.value.get("change") ?? "";
  const { data, error } = useLoaded(
    (signal) => get("/v1/runs/{run}/evaluations/{evaluation}/rows", { path: { run, evaluation }, query: { limit: 500, change: (change || null) as Change | null }, signal }),
    `${run} ${evaluation} ${change}`,
  );
  const [before, last] = data?.steps.slice(-2) ?? [];
  return (
    <section aria-label="Rows over steps">
      <div class="toolbar">
        <Choice name="change" label="Show" options={CHANGES} />
        {data && <span class="quiet">{data.rows.length} of {data.total} rows; {data.metric === "accuracy" ? "the share of a row's answers that are correct" : "the mean reward of a row"}</span>}
      </div>
      <Problem error={error} />
      {data && data.steps.length < 2 && <p class="quiet">This set has one evaluation so far: what changes between two shows here.</p>}
      {before && last && (
        <p class="intro">From step {before.step} to step {last.step} <b>{last.better}</b> rows got better and <b>{last.worse}</b> worse{last.p === null ? "" : ` (chance alone divides them so with p = ${number(last.p, 3)})`}.</p>
      )}
      {data && data.rows.length > 0 && (
        <div class="scroll">
          <table class="grid-rows">
            <thead>
              <tr><th>Step</th>{data.steps.map((each) => <th key={each.evaluation} class="n">{each.step}</th>)}</tr>
              <tr><th>Mean</th>{data.steps.map((each) => <td key={each.evaluation} class="n strong">{number(each.value, 2)}</td>)}</tr>
              <tr><th>Better, worse</th>{data.steps.map((each, i) => <td key={each.evaluation} class="n" title={each.p === null ? undefined : `p = ${number(each.p, 3)}`}>{i ? `+${each.better} −${each.worse}` : "–"}</td>)}</tr>
            </thead>
            <tbody>
              {data.rows.map((row) => (
                <tr key={row.row}>
                  <th><button class="link" aria-label={`Answers of row ${row.row}`} onClick={() => ask({ row: String(row.row), rows: null, verdict: null }, { push: true })}>row {row.row}</button></th>
                  {row.values.map((value, i) => <td key={data.steps[i]!.evaluation} class={`n ${shade(value, data.metric)}`}>{value === null ? "" : number(value, 2)}</td>)}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

/** The colour of a value: of correct answers from none to all. */
const shade = (value: number | null, metric: string) => (value === null || metric !== "accuracy" ? "" : value >= 1 ? "right" : value > 0 ? "partly" : "wrong");
