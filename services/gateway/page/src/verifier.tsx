// Try a verifier: type an answer to a row, and see what it earns and why.

import { useSignal } from "@preact/signals";
import { type Schemas, get, mayChange, post } from "./api";
import { number } from "./format";
import { Choice, Problem, useLoaded } from "./parts";
import { ask, query } from "./router";

type Scored = Schemas["ScoredAnswer"];

export function TryVerifier() {
  const { data, error } = useLoaded(
    async (signal) => {
      const [{ verifiers }, { datasets }] = await Promise.all([get("/v1/verifiers", { signal }), get("/v1/datasets", { query: { limit: 500 }, signal })]);
      return { verifiers, datasets };
    },
    "verifiers",
  );
  const answer = useSignal("");
  const reference = useSignal("");
  const params = useSignal("");
  const result = useSignal<Scored | null>(null);
  const failure = useSignal<unknown>(null);
  if (!data) return error ? <Problem error={error} /> : <p class="quiet empty">Loading…</p>;
  const { verifiers, datasets } = data;
  const dataset = query.value.get("dataset") ?? datasets[0]?.name ?? "";
  const row = Number(query.value.get("row") ?? 0) || 0;
  const record = datasets.find(({ name }) => name === dataset);
  const name = query.value.get("verifier") ?? record?.defaults?.rewards[0]?.verifier ?? verifiers.find(({ name }) => name === "math")?.name ?? verifiers[0]?.name ?? "";
  const verifier = verifiers.find((each) => each.name === name);
  const score = async (event: Event) => {
    event.preventDefault();
    failure.value = null;
    try {
      const body = {
        completion: answer.value,
        row,
        ...(dataset ? { dataset } : {}),
        ...(reference.value ? { answer: reference.value } : {}),
        params: params.value.trim() ? (JSON.parse(params.value) as Record<string, unknown>) : {},
      };
      result.value = (await post("/v1/verifiers/{verifier}/score", { path: { verifier: name }, body })) as Scored;
    } catch (error) {
      result.value = null;
      failure.value = error instanceof SyntaxError ? "The parameters must be JSON." : error;
    }
  };
  return (
    <div class="columns">
      <form class="card" onSubmit={(event) => void score(event)} aria-label="To score">
        <div class="toolbar">
          <Choice name="verifier" label="Verifier" fallback={name} options={verifiers.map((each) => [each.name, each.name])} />
          <Choice name="dataset" label="Dataset" fallback={dataset} options={datasets.map((each) => [each.name, each.name])} />
          <label class="choice"><span class="quiet">Row</span><input type="number" min={0} max={record ? record.rows - 1 : undefined} value={row} onChange={(event) => ask({ row: event.currentTarget.value || null })} /></label>
        </div>
        <p class="quiet">{verifier?.description}</p>
        {verifier?.notice && <p class="warned">{verifier.notice}</p>}
        {dataset && <Asked dataset={dataset} row={row} />}
        <label class="tall">Answer <textarea rows={5} required value={answer.value} onInput={(event) => (answer.value = event.currentTarget.value)} /></label>
        <label class="tall">Reference <input value={reference.value} placeholder="the row's" onInput={(event) => (reference.value = event.currentTarget.value)} /></label>
        <label class="tall">Parameters <input value={params.value} placeholder="none, or JSON" onInput={(event) => (params.value = event.currentTarget.value)} /></label>
        <button class="primary" disabled={!name || !mayChange.value}>Score</button>
        {!mayChange.value && <p class="quiet">A key that only reads cannot score, since a verifier may ask a judge that costs money. Log in with a key of the role <code>submit</code>.</p>}
        <Problem error={failure.value} />
      </form>
      <section class="card" aria-label="Verdict" aria-live="polite">
        <h2>Verdict</h2>
        {result.value ? <Verdict scored={result.value} /> : <p class="quiet">Nothing is scored yet. Nothing here is kept or trained.</p>}
      </section>
    </div>
  );
}

function Asked({ dataset, row }: { dataset: string; row: number }) {
  const { data, error } = useLoaded((signal) => get("/v1/datasets/{dataset}/preview", { path: { dataset }, query: { row, limit: 1 }, signal }), `${dataset} ${row}`);
  const shown = data?.rows[0];
  if (!shown) return <Problem error={error} />;
  return (
    <>
      <pre class="wrap">{text(shown.prompt)}</pre>
      {shown.answer != null && <p class="facts"><span>reference</span> <code>{text(shown.answer)}</code></p>}
    </>
  );
}

function Verdict({ scored }: { scored: Scored }) {
  return (
    <>
      <p class="verdict"><b class="n">{number(scored.reward)}</b> {scored.status}</p>
      {scored.detail && <p>{scored.detail}</p>}
      {Object.entries(scored.components ?? {}).map(([name, value]) => <p key={name} class="facts"><span>{name}</span> {number(value as number)}</p>)}
      <p class="facts"><span>compared with</span> <code>{text(scored.answer)}</code></p>
    </>
  );
}

const text = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));
