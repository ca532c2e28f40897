// Change a run: its name, tags and notes in any state, its priority while it is queued, and parts of its config while
// it waits or trains.

import { useSignal } from "@preact/signals";
import { type Run, type RunRecord, type Schemas, Refusal, mayChange, patch } from "./api";
import { flat } from "./config";
import { number } from "./format";
import { OVER, Problem } from "./parts";
import { ask, query } from "./router";
import { keep } from "./store";

type Patch = Schemas["RunPatch"];

const VALUES: [key: keyof Patch, path: string, label: string][] = [
  ["max_steps", "training.max_steps", "Steps"],
  ["lr", "optimizer.lr", "Peak learning rate"],
  ["max_staleness", "rollout.max_staleness", "Most staleness"],
  ["evaluation_every", "evaluation.every", "Steps between evaluations"],
  ["evaluation_every", "validation.every", "Steps between validations"],
  ["checkpoint_every", "training.checkpoint_every", "Steps between checkpoints"],
];

export function EditButton() {
  const isOpen = query.value.has("edit");
  if (!mayChange.value) return null;
  return <button aria-expanded={isOpen} onClick={() => ask({ edit: isOpen ? null : "1" })}>Edit</button>;
}

export function Edit({ run, done }: { run: RunRecord; done: () => void }) {
  const error = useSignal<unknown>(null);
  if (!query.value.has("edit") || !mayChange.value) return null;
  const config = flat(run.config);
  const isLive = !OVER.has(run.state) && run.state !== "cancelling";
  const values = isLive ? VALUES.filter(([, path]) => config.get(path) != null) : [];
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const text = (name: string) => String(form.get(name) ?? "").trim();
    const tags = text("tags").split(",").map((tag) => tag.trim()).filter(Boolean);
    const body: Patch = {
      ...(text("name") && text("name") !== run.name ? { name: text("name") } : {}),
      ...(tags.join() !== (run.tags ?? []).join() ? { tags } : {}),
      ...(text("notes") !== (run.notes ?? "").trim() ? { notes: text("notes") } : {}),
      ...(form.has("priority") && Number(text("priority")) !== run.priority ? { priority: Number(text("priority")) } : {}),
    };
    for (const [key, path] of values) {
      const value = Number(text(key));
      if (text(key) && value !== config.get(path)) Object.assign(body, { [key]: value });
    }
    error.value = null;
    try {
      if (Object.keys(body).length) keep((await patch("/v1/runs/{run}", { path: { run: run.id }, body })) as Run);
      ask({ edit: null });
      done();
    } catch (failure) {
      error.value = failure;
    }
  };
  return (
    <form class="card edit" aria-label="Edit the run" onSubmit={(event) => void submit(event)}>
      <label class="tall">Name <input name="name" defaultValue={run.name} maxLength={100} /></label>
      <label class="tall">Tags <input name="tags" defaultValue={(run.tags ?? []).join(", ")} placeholder="words, with commas between them" /></label>
      <label class="tall">Notes <textarea name="notes" rows={3} defaultValue={run.notes ?? ""} /></label>
      <div class="pair">
        {run.state === "queued" && <label>Priority <input name="priority" type="number" defaultValue={String(run.priority)} /></label>}
        {values.map(([key, path, label]) => (
          <label key={key}>{label} <input name={key} type="number" step="any" defaultValue={String(config.get(path))} title={path} /></label>
        ))}
      </div>
      {values.length > 0 && <p class="quiet">The learner takes these at the next step that it plans.</p>}
      <Problem error={error.value} />
      {error.value instanceof Refusal && <ul class="problem">{error.value.problems.map(({ path, message }) => <li key={path}><code>{path}</code> {message}</li>)}</ul>}
      <div class="line"><button class="primary">Save</button> <button type="button" onClick={() => ask({ edit: null })}>Close</button></div>
    </form>
  );
}

/** What was changed since the submission, and from which step it holds. */
export function Edits({ run }: { run: RunRecord }) {
  if (!run.edits?.length) return null;
  return (
    <ul class="facts" aria-label="Changes since the submission">
      {run.edits.map(({ key, before, after, by, step }, i) => (
        <li key={i}><code>{key}</code> {number(before, 9)} → <b>{number(after, 9)}</b> <span>{step === null ? "from the next step that is planned" : `from step ${step}`}, by {by}</span></li>
      ))}
    </ul>
  );
}
