// The report of a run, in its tab: the file that can be downloaded.

import { type RunRecord, address, refusalOf } from "./api";
import { Problem, useLoaded } from "./parts";
import { ask, query } from "./router";

export function Report({ run }: { run: RunRecord }) {
  const against = query.value.get("against");
  const url = address("/v1/runs/{run}/report", { run: run.id }, { against });
  // The first request writes the report, which takes seconds; the frame gets what is there then.
  const { data, error, again } = useLoaded(
    async (signal) => {
      const response = await fetch(url, { signal });
      if (!response.ok) throw await refusalOf(response, url);
      return run.step;
    },
    url,
    run.state,
  );
  return (
    <>
      <div class="toolbar">
        <label class="choice">
          <span class="quiet">Compared with</span>
          <input placeholder="no other run: name or id" value={against ?? ""} onChange={(event) => ask({ against: event.currentTarget.value.trim() || null })} />
        </label>
        <a href={url} download={`${run.name}-report.html`}>Download</a>
        <a href={url} target="_blank" rel="noopener">Open alone</a>
        {data !== null && data < run.step && <button onClick={again}>Show step {run.step}, the newest</button>}
      </div>
      <Problem error={error} />
      {data === null && !error && <p class="quiet empty">The report is written…</p>}
      {data !== null && !error && <iframe class="report" key={`${url} ${data}`} src={url} title={`Report of ${run.name}`} />}
    </>
  );
}
