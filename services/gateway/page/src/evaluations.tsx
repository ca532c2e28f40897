// The evaluations of a run, and the answers of the chosen one.

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
      {chosen && <Rows key={chosen} run={run} evaluation={chosen} />}
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
  const { data, error } = useLoaded(
    (signal) => get("/v1/runs/{run}/evaluations/{evaluation}/answers", { path: { run, evaluation }, query: { limit: 50, verdict: (verdict || null) as Verdict | null }, signal }),
    `${run} ${evaluation} ${verdict}`,
  );
  return (
    <section class="below" aria-label={`Answers of ${evaluation}`}>
      <div class="toolbar">
        <h2>Answers of {evaluation}</h2>
        <Choice name="verdict" label="Show" options={VERDICTS} />
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
