// Datasets: upload with its progress and a look at the columns first, and the rows as a run reads them.

import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { type Schemas, Refusal, address, get, mayChange, post, remove, send } from "./api";
import { Findings } from "./findings";
import { ago, bytes, moment, number } from "./format";
import { Action, Chip, Problem, useLoaded } from "./parts";
import { ask, go, parts, query } from "./router";

type Uploaded = Schemas["Uploaded"];
type Row = Schemas["PreviewRow"];

const PEEK = 1 << 20; // bytes of a text that are looked at before it is sent
const PART = 1 << 23;
const ROWS = 20;

export function Datasets() {
  const name = parts.value[1];
  return name ? <One key={name} name={name} /> : <All />;
}

function All() {
  const uploaded = useSignal(0);
  const { data, error } = useLoaded((signal) => get("/v1/datasets", { query: { limit: 500 }, signal }), "datasets", uploaded.value);
  return (
    <main id="main">
      <header class="bar"><h1 tabIndex={-1}>Datasets</h1></header>
      <Problem error={error} />
      <div class="columns">
        <div>
          {!data && !error && <p class="quiet empty">Loading…</p>}
          {data && !data.datasets.length && <p class="quiet empty">No dataset yet: upload one here, or with <code>headrace datasets add</code>.</p>}
          {data && data.datasets.length > 0 && (
            <div class="scroll">
              <table class="list">
                <thead><tr><th>Dataset</th><th class="n">Rows</th><th class="n">Size</th><th>Scored by</th><th>From</th><th class="n">Uploaded</th></tr></thead>
                <tbody>
                  {data.datasets.map((each) => (
                    <tr key={each.id}>
                      <td><a href={`/datasets/${encodeURIComponent(each.name)}`}><b>{each.name}</b></a></td>
                      <td class="n">{number(each.rows, 0)}</td>
                      <td class="n">{bytes(each.segments.reduce((sum, segment) => sum + segment.bytes, 0))}</td>
                      <td class="quiet">{each.defaults?.rewards.map(({ verifier }) => verifier).join(", ") ?? "–"}</td>
                      <td class="quiet">{each.damage ?? each.source}</td>
                      <td class="n quiet" title={moment(each.created)}>{ago(each.created)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )}
        </div>
        {mayChange.value && <Upload done={() => uploaded.value++} />}
      </div>
    </main>
  );
}

type Shown = Schemas["FilePreview"];

/** Whether a file can only be read whole: Parquet has its columns at the end. */
const isWhole = (file: File) => /\.(parquet|pq|gz|tgz)$/i.test(file.name);

/** Send a file in parts, without the bytes that have arrived before; returns the id of the upload. */
async function sendParts(file: File, tell: (sent: number) => void): Promise<string> {
  const about = { name: file.name, bytes: file.size, fingerprint: String(file.lastModified) };
  let { id, received } = await post("/v1/uploads", { body: about });
  while (received < file.size) {
    const part = file.slice(received, received + PART);
    const url = address("/v1/uploads/{upload}", { upload: id }, { from_byte: received });
    ({ received } = (await again(() => send(url, { method: "PUT", body: part }))) as Schemas["Upload"]);
    tell(received);
  }
  return id;
}

/** A broken connection is tried again for a minute; a refusal is none. */
async function again<T>(act: () => Promise<T>): Promise<T> {
  for (let pause = 500; ; pause *= 2) {
    try {
      return await act();
    } catch (error) {
      if (error instanceof Refusal || pause > 32_000) throw error;
      await new Promise((done) => setTimeout(done, pause));
    }
  }
}

function Upload({ done }: { done: () => void }) {
  const form = useRef<HTMLFormElement>(null);
  const files = useSignal<File[]>([]);
  const shown = useSignal<Shown | null>(null);
  const sent = useSignal<string[]>([]); // uploads of the files, in their order
  const share = useSignal<number | null>(null);
  const error = useSignal<unknown>(null);
  const made = useSignal<Uploaded | null>(null);
  const hub = useSignal(""); // a dataset's name on the hub, instead of files
  const total = files.value.reduce((sum, file) => sum + file.size, 0);

  const mapping = (): string => {
    const values = new FormData(form.current!);
    const [known, prompt, answer] = ["known", "prompt", "answer"].map((name) => String(values.get(name) ?? ""));
    return known || (prompt || answer ? JSON.stringify({ ...(prompt && { prompt }), ...(answer && { answer }) }) : "");
  };
  const sendAll = async () => {
    let before = sent.value.length ? total : 0;
    if (!before)
      for (const file of files.value) {
        const id = await sendParts(file, (bytes) => (share.value = (before + bytes) / total));
        sent.value = [...sent.value, id];
        before += file.size;
      }
  };
  const preview = async () => {
    const file = files.value[0];
    if (!file) return;
    const body = new FormData();
    try {
      if (isWhole(file)) {
        share.value = 0;
        await sendAll();
        body.set("upload", sent.value[0]!);
      } else {
        body.set("file", file.slice(0, PEEK), file.name);
        body.set("is_head", String(file.size > PEEK));
      }
      if (mapping()) body.set("mapping", mapping());
      body.set("limit", "3");
      shown.value = (await send("/v1/datasets/preview", { method: "POST", body })) as Shown;
    } catch (failure) {
      error.value = failure;
    }
    share.value = null;
  };
  const choose = (event: Event) => {
    files.value = [...((event.currentTarget as HTMLInputElement).files ?? [])];
    [shown.value, sent.value, error.value, made.value] = [null, [], null, null];
    void preview();
  };
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const values = new FormData(form.current!);
    const body = new FormData();
    for (const field of ["name", "verifier"]) if (values.get(field)) body.set(field, values.get(field)!);
    if (mapping()) body.set("mapping", mapping());
    if (values.has("skip")) body.set("bad_rows", "skip");
    [error.value, made.value, share.value] = [null, null, 0];
    try {
      if (hub.value) body.set("hub", hub.value);
      else await sendAll();
      share.value = 1;
      for (const id of hub.value ? [] : sent.value) body.append("upload", id);
      made.value = (await send("/v1/datasets", { method: "POST", body })) as Uploaded;
      sent.value = [];
      done();
    } catch (failure) {
      error.value = failure;
    }
    share.value = null;
  };
  return (
    <aside>
      <form ref={form} class="card upload" onSubmit={submit} aria-label="Upload">
        <h2>Upload</h2>
        <label>Files <input type="file" multiple required={!hub.value} disabled={!!hub.value} accept=".jsonl,.json,.ndjson,.csv,.tsv,.parquet,.tar,.gz" onChange={choose} /></label>
        <p class="quiet">JSON lines, CSV with a header, Parquet, or a tar of JSON. Several files become one dataset.</p>
        <label>
          Or the hub{" "}
          <input value={hub.value} disabled={files.value.length > 0} placeholder="openai/gsm8k or openai/gsm8k/main/train" spellcheck={false} onInput={(event) => (hub.value = event.currentTarget.value.trim())} />
        </label>
        {hub.value && <p class="quiet">The gateway fetches it: ORG/NAME, ORG/NAME/SPLIT or ORG/NAME/CONFIG/SPLIT, with @REVISION behind NAME if you need one.</p>}
        {files.value.length > 1 && <p class="quiet">In this order: {files.value.map(({ name }) => name).join(", ")}.</p>}
        <label>Name <input name="name" pattern="[A-Za-z0-9][A-Za-z0-9._\-]{0,99}" placeholder={files.value[0]?.name.split(".")[0] ?? (hub.value ? "its name on the hub" : "the file's name")} /></label>
        <label>
          Known file{" "}
          <select name="known" onChange={() => void preview()}>
            <option value="">none</option>
            {["gsm8k", "math", "humaneval", "mbpp", "ifeval", "countdown", "reasoning_gym"].map((each) => <option key={each} value={each}>{each}</option>)}
          </select>
        </label>
        {shown.value && shown.value.columns.length > 0 && <Mapping shown={shown.value} changed={() => void preview()} />}
        {shown.value?.problem && <p class="warned">{shown.value.problem}</p>}
        <label>Verifier <input name="verifier" placeholder="none: references are not read now" /></label>
        <label>Bad rows <span><input type="checkbox" name="skip" /> leave them out</span></label>
        <button class="primary" disabled={share.value !== null}>{hub.value ? "Fetch" : "Upload"}</button>
        {share.value !== null && (
          <div class="bar" role="progressbar" aria-label="Upload" aria-valuenow={Math.round(share.value * 100)}><i style={{ width: `${share.value * 100}%` }} /></div>
        )}
        {share.value === 1 && <p class="quiet">{hub.value ? "The gateway fetches the files and reads the rows." : "Sent; the gateway reads the rows."}</p>}
        <Problem error={error.value} />
        {made.value && <Result made={made.value} />}
      </form>
    </aside>
  );
}

/** The columns of a file, and what becomes of its first rows. */
function Mapping({ shown, changed }: { shown: Shown; changed: () => void }) {
  return (
    <>
      <div class="pair">
        {(["prompt", "answer"] as const).map((part) => (
          <label key={part}>
            {part === "prompt" ? "Prompt" : "Answer"}
            <select name={part} onChange={changed}>
              <option value="">guessed</option>
              {shown.columns.map((each) => <option key={each} value={each}>{each}</option>)}
            </select>
          </label>
        ))}
      </div>
      <div class="scroll">
        <table>
          <thead><tr>{shown.columns.map((each) => <th key={each}>{each}</th>)}</tr></thead>
          <tbody>{shown.source.map((row, i) => <tr key={i}>{shown.columns.map((each) => <td key={each} class="peek">{shortened(row[each])}</td>)}</tr>)}</tbody>
        </table>
      </div>
      {shown.rows[0] && (
        <p class="quiet">
          The prompt is {shown.prompt.join(" and ")}: the first row asks <code>{shortened(shown.rows[0].prompt, 160)}</code>
          {shown.rows[0].answer != null && <> and its answer is <code>{shortened(shown.rows[0].answer, 160)}</code></>}
        </p>
      )}
      {shown.notes.map((each) => <p key={each} class="quiet">{each}</p>)}
    </>
  );
}

function Result({ made }: { made: Uploaded }) {
  const mapping = typeof made.mapping === "string" ? made.mapping : Object.entries(made.mapping).filter(([, value]) => value != null).map(([part, column]) => `${part} from ${Array.isArray(column) ? column.join(" and ") : String(column)}`).join(", ");
  return (
    <div role="status">
      <p><a href={`/datasets/${encodeURIComponent(made.name)}`}>{made.name}</a> has {number(made.rows, 0)} rows{made.left_out > 0 && `, ${number(made.left_out, 0)} left out`}{made.added ? "" : ": it was there before"}.</p>
      <p class="quiet">Read: {mapping}.{made.left_over.length ? ` Kept for verifiers: ${made.left_over.join(", ")}.` : ""}</p>
      {made.duplicates > 0 && <p class="warned">{number(made.duplicates, 0)} rows repeat the prompt and answer of an earlier one.</p>}
      <ul class="warned">{[...made.warnings, ...made.notes].map((each) => <li key={each}>{each}</li>)}</ul>
    </div>
  );
}

function One({ name }: { name: string }) {
  const row = Number(query.value.get("row") ?? 0) || 0;
  const { data, error } = useLoaded(
    async (signal) => {
      const path = { dataset: name };
      const [record, shown] = await Promise.all([get("/v1/datasets/{dataset}", { path, signal }), get("/v1/datasets/{dataset}/preview", { path, query: { row, limit: ROWS }, signal })]);
      return { record, shown };
    },
    `${name} ${row}`,
  );
  if (!data) return <main id="main"><header class="bar"><h1 tabIndex={-1}>{name}</h1></header>{error ? <Problem error={error} /> : <p class="quiet empty">Loading…</p>}</main>;
  const { record, shown } = data;
  const last = row + shown.rows.length;
  return (
    <main id="main">
      <header class="bar">
        <h1 tabIndex={-1}>{record.name}</h1>
        <code class="quiet">{record.id}</code>
        <span class="actions">
          {mayChange.value && <a class="button primary" href={`/submit?set=${encodeURIComponent(`data.dataset=${record.name}`)}`}>Train on it</a>}
          <Action label="Delete" kind="danger" sure={`Delete the dataset ${record.name} with its ${record.rows} rows, for good?`} act={() => remove("/v1/datasets/{dataset}", { path: { dataset: record.name } }).then(() => go("/datasets"))} />
        </span>
      </header>
      <ul class="chips">
        <li><Chip label="rows">{number(record.rows, 0)}</Chip></li>
        {record.source && <li><Chip label="from">{record.source}</Chip></li>}
        {record.defaults && <li><Chip label="scored by">{record.defaults.rewards.map(({ verifier }) => verifier).join(", ")}</Chip></li>}
        {record.defaults?.template && <li><Chip label="template">{record.defaults.template}</Chip></li>}
        <li><a class="chip" href={`/?dataset=${encodeURIComponent(record.name)}`}>its runs</a></li>
      </ul>
      <Problem error={error} />
      <div class="columns">
        <div>
          <div class="toolbar">
            <button disabled={row === 0} onClick={() => ask({ row: String(Math.max(0, row - ROWS)) === "0" ? null : String(row - ROWS) })}>Before</button>
            <span class="n">rows {row} to {last - 1} of {number(shown.total, 0)}</span>
            <button disabled={last >= shown.total} onClick={() => ask({ row: String(last) })}>Next</button>
            <label class="choice"><span class="quiet">Row</span><input type="number" min={0} max={shown.total - 1} value={row} onChange={(event) => ask({ row: event.currentTarget.value || null })} /></label>
          </div>
          <ol class="answers">{shown.rows.map((each) => <Shown key={each.index} row={each} />)}</ol>
        </div>
        <Findings dataset={record.name} />
      </div>
    </main>
  );
}

function Shown({ row }: { row: Row }) {
  const chat = typeof row.prompt === "string" ? null : row.prompt;
  return (
    <li>
      <p class="facts"><b>row {row.index}</b> {row.answer != null && <span>answer <code>{shortened(row.answer, 400)}</code></span>}</p>
      {chat ? chat.map((message, i) => <div key={i}><p class="facts"><span>{String(message["role"] ?? "")}</span></p><pre>{typeof message["content"] === "string" ? message["content"] : JSON.stringify(message, null, 1)}</pre></div>) : <pre>{row.prompt as string}</pre>}
      {Object.keys(row.columns).length > 0 && <p class="facts">{Object.entries(row.columns).map(([name, value]) => <span key={name}>{name} <code>{shortened(value, 200)}</code></span>)}</p>}
    </li>
  );
}

function shortened(value: unknown, most = 80): string {
  const text = value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
  return text.length > most ? `${text.slice(0, most)}…` : text;
}
