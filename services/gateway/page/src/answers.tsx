// Answers of a policy: text from outside, which only ever becomes text.

import { type Schemas, get } from "./api";
import { number } from "./format";
import { Problem, Sentence, useLoaded } from "./parts";

type Answer = Schemas["SampledAnswer"];

/** `why`: why the run has no trained answers. */
export function Answers({ run, state, step, why }: { run: string; state: string; step: number; why: string | null }) {
  const { data, error } = useLoaded((signal) => get("/v1/runs/{run}/samples", { path: { run }, query: { limit: 40 }, signal }), run, `${state} ${step}`);
  if (!data) return error ? <Problem error={error} /> : <p class="quiet empty">Loading…</p>;
  const all = [...data.samples, ...data.judged].sort((a, b) => b.step - a.step || (b.reward ?? -Infinity) - (a.reward ?? -Infinity));
  return (
    <>
      <Problem error={error} />
      {why && <p class="quiet empty"><Sentence text={why} /></p>}
      <ol class="answers">
        {all.map((answer) => <One key={`${answer.step} ${answer.task} ${answer.completion}`} answer={answer} />)}
      </ol>
    </>
  );
}

function One({ answer }: { answer: Answer }) {
  const components = Object.entries(answer.components);
  return (
    <li>
      <p class="facts">
        <b>reward {number(answer.reward)}</b> <span>{answer.status}</span>
        <span>{answer.step ? `step ${answer.step}` : "judged, not trained"}</span>
        {answer.step > 0 && <span>advantage {number(answer.advantage)}</span>}
        <span>{answer.tokens} tokens, {answer.finish_reason}</span>
        <span>{origin(answer)}</span>
        {components.length > 1 && components.map(([name, value]) => <span key={name}>{name} {number(value)}</span>)}
      </p>
      <pre class="quiet">{answer.prompt}</pre>
      <pre>{answer.completion}</pre>
      <Reasons reasons={answer.reasons ?? {}} />
      {answer.reference && <p class="facts"><span>reference</span> <code>{answer.reference}</code></p>}
    </li>
  );
}

/** What each verifier says of an answer. */
export function Reasons({ reasons }: { reasons: Record<string, string> }) {
  return <>{Object.entries(reasons).map(([name, reason]) => <p key={name} class="facts"><span>{name}</span> {reason}</p>)}</>;
}

function origin({ own, dataset, row, task }: Answer): string {
  if (own != null) return `a client's prompt${own ? ` “${own}”` : ""}, task ${task}`;
  return `${dataset ? `${dataset}, ` : ""}row ${row}, task ${task}`;
}
