// What the rows of a dataset are like: how long they are, which repeat, and which references no verifier can read.

import { useEffect } from "preact/hooks";
import { type Schemas, get } from "./api";
import { number, percent } from "./format";
import { Problem, useLoaded } from "./parts";

type Lengths = Schemas["TextLengths"];
type Repeated = Schemas["Repetitions"];
type References = Schemas["ReadReferences"];

const AGAIN = 3000; // ms until counts that are not done are asked for again

export function Findings({ dataset }: { dataset: string }) {
  const { data, error, again } = useLoaded((signal) => get("/v1/datasets/{dataset}/findings", { path: { dataset }, signal }), dataset);
  const isCounting = data?.state === "counting" || data?.references.some(({ state }) => state === "counting");
  useEffect(() => {
    const timer = isCounting ? setTimeout(again, AGAIN) : undefined;
    return () => clearTimeout(timer);
  }, [data]);
  const counts = data?.counts;
  return (
    <aside aria-label="What the rows are like" aria-busy={!data || isCounting}>
      <section class="card">
        <div class="line"><h2>Lengths</h2><span class="quiet">{counts ? "in characters" : data || error ? "" : "counting…"}</span></div>
        <Problem error={error ?? (data?.problem ? data.problem : null)} />
        {counts && <Histogram label="Prompts" lengths={counts.prompts} dataset={dataset} />}
        {counts?.answers && <Histogram label="Answers" lengths={counts.answers} dataset={dataset} />}
        {counts && !counts.answers && <p class="quiet">No row has an answer.</p>}
      </section>
      {counts && (
        <section class="card">
          <h2>Repetitions</h2>
          <Repeats found={counts.duplicates} of={data.rows} words="repeat the prompt and answer of an earlier row" dataset={dataset} />
          <Repeats found={counts.other_answers} of={data.rows} words="ask an earlier prompt again, with another answer" dataset={dataset} />
          {!counts.duplicates.rows && !counts.other_answers.rows && <p class="quiet">No row repeats another one.</p>}
        </section>
      )}
      {data && data.references.length > 0 && (
        <section class="card">
          <h2>References</h2>
          {data.references.map((each) => <Read key={each.verifier} found={each} dataset={dataset} />)}
        </section>
      )}
    </aside>
  );
}

/** Rows by length: a bar for each bucket, on a scale of powers of two. */
function Histogram({ label, lengths, dataset }: { label: string; lengths: Lengths; dataset: string }) {
  const most = Math.max(1, ...lengths.buckets.map(({ rows }) => rows));
  return (
    <div class="lengths">
      <p class="facts">
        <b>{label}</b> <span>median {number(lengths.median, 0)}</span> <span>95 % up to {number(lengths.p95, 0)}</span>
        <span>longest <a href={rowPath(dataset, lengths.longest_row)}>{number(lengths.max, 0)}</a></span>
      </p>
      <ol aria-label={`${label} by length`}>
        {lengths.buckets.map(({ start, end, rows }) => (
          <li key={start}><span class="n quiet">{start === end ? number(start, 0) : `${number(start, 0)} to ${number(end, 0)}`}</span><span class="bar"><i style={{ width: `${(rows / most) * 100}%` }} /></span><span class="n">{number(rows, 0)}</span></li>
        ))}
      </ol>
    </div>
  );
}

function Repeats({ found, of, words, dataset }: { found: Repeated; of: number; words: string; dataset: string }) {
  if (!found.rows) return null;
  return (
    <p>
      <b>{number(found.rows, 0)}</b> rows ({percent(found.rows / of)}) {words}:{" "}
      {found.examples.slice(0, 5).map(({ row, first }, i) => <span key={row}>{i > 0 && ", "}<a href={rowPath(dataset, row)}>{row}</a> as <a href={rowPath(dataset, first)}>{first}</a></span>)}
      {found.rows > Math.min(5, found.examples.length) && "…"}
    </p>
  );
}

function Read({ found, dataset }: { found: References; dataset: string }) {
  return (
    <div>
      <p>
        <code>{found.verifier}</code> {found.state === "failed" ? <span class="problem">{found.problem}</span> : (
          <>{found.unreadable ? <b>cannot read {number(found.unreadable, 0)}</b> : "reads all"} of {number(found.rows, 0)} references{found.state === "counting" ? " so far" : ""}.</>
        )}
      </p>
      {found.remark && <p class="quiet">{found.remark}</p>}
      <ul class="warned">{found.examples.slice(0, 5).map(({ row, reason }) => <li key={row}><a href={rowPath(dataset, row)}>row {row}</a> {reason}</li>)}</ul>
    </div>
  );
}

const rowPath = (dataset: string, row: number) => `/datasets/${encodeURIComponent(dataset)}?row=${row}`;
