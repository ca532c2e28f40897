// The checkpoints of a run: which there are, which stay, and each as a file.

import { get, mayChange, post } from "./api";
import { ago, bytes, moment } from "./format";
import { Action, Problem, useLoaded } from "./parts";

export function Checkpoints({ run, fresh }: { run: string; fresh: string }) {
  const { data, error, again } = useLoaded((signal) => get("/v1/runs/{run}/checkpoints", { path: { run }, query: { limit: 500 }, signal }), run, fresh);
  if (!data) return error ? <Problem error={error} /> : <p class="quiet empty">Loading…</p>;
  // A step that was trained again has several. Its newest one is what pinning and downloading mean.
  const newest = data.checkpoints.filter(({ step }, i, all) => all[i - 1]?.step !== step);
  if (!newest.length) return <p class="quiet empty">No checkpoint is on disk. <code>training.checkpoint_every</code> sets how often the run writes one.</p>;
  return (
    <>
      <Problem error={error} />
      <p class="quiet intro">A new checkpoint takes the place of older ones, as <code>training.keep_checkpoints</code> says. A pinned one stays as long as its run. A fork trains on from a checkpoint with another config.</p>
      <div class="scroll">
        <table class="list">
          <thead><tr><th class="n">Step</th><th>Name</th><th class="n">Size</th><th>Written</th><th>State</th><th><span class="hidden">Actions</span></th></tr></thead>
          <tbody>
            {newest.map(({ step, directory, bytes: size, created, current, pinned }) => {
              const path = { run, step };
              const name = `${run}@${step}`;
              return (
                <tr key={directory}>
                  <td class="n strong">{step}</td>
                  <td title={directory}><code>{name}</code></td>
                  <td class="n">{bytes(size)}</td>
                  <td title={moment(created)}>{ago(created)}</td>
                  <td>{[current ? "the run goes on from it" : "", pinned ? "pinned" : ""].filter(Boolean).join(", ") || "–"}</td>
                  <td class="line">
                    <Action label={pinned ? "Unpin" : "Pin"} about={`${pinned ? "Unpin" : "Pin"} step ${step}`} act={() => (pinned ? post("/v1/runs/{run}/checkpoints/{step}/unpin", { path }) : post("/v1/runs/{run}/checkpoints/{step}/pin", { path })).then(again)} />
                    <a class="button" href={`/v1/runs/${run}/checkpoints/${step}/download`} download aria-label={`Download step ${step}`}>Download</a>
                    {mayChange.value && <a class="button" href={`/submit?from=${run}&at=${step}`} aria-label={`Fork at step ${step}`}>Fork</a>}
                    <a class="button" href={`/try?model=${encodeURIComponent(name)}`} aria-label={`Try step ${step}`}>Try</a>
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </>
  );
}
