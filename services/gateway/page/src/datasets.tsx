// Datasets: upload with its progress and a look at the columns first, and the rows as a run reads them.

import { useSignal } from "@preact/signals";
import { type Schemas, Refusal, get, mayChange, remove } from "./api";
import { Findings } from "./findings";
import { ago, bytes, moment, number } from "./format";
import { Action, Chip, Problem, useLoaded } from "./parts";
import { ask, go, parts, query } from "./router";

type Uploaded = Schemas["Uploaded"];
type Row = Schemas["PreviewRow"];

const PEEK = 1 << 16; // bytes of a file that are looked at before it is sent
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

/** The rows at a file's beginning, if they can be read here: JSON lines and CSV. */
async function peek(file: File): Promise<Record<string, unknown>[]> {
  const text = await file.slice(0, PEEK).text();
  if (/\.(csv|tsv)$/i.test(file.name)) return csvRows(text, file.size <= PEEK);
  if (!/\.(jsonl|ndjson|json)$/i.test(file.name)) return [];
  const lines = text.split("\n").slice(0, 4);
  try {
    const rows = lines.filter((line) => line.trim()).slice(0, 3).map((line) => JSON.parse(line) as unknown);
    return rows.every((row) => row && typeof row === "object" && !Array.isArray(row)) ? (rows as Record<string, unknown>[]) : [];
  } catch {
    return []; // the gateway names the line that cannot be read
  }
}

/** The first rows of CSV with a header. A row that is cut off counts if the text is whole. */
function csvRows(text: string, isWhole: boolean): Record<string, unknown>[] {
  const heading = text.slice(0, text.indexOf("\n") + 1 || text.length);
  const count = (character: string) => heading.split(character).length;
  const separator = [",", ";", "\t", "|"].reduce((best, each) => (count(each) > count(best) ? each : best));
  const records: string[][] = [];
  let [record, cell, isQuoted] = [[] as string[], "", false];
  const end = () => {
    if (record.length || cell) records.push([...record, cell]);
    [record, cell] = [[], ""];
  };
  for (let i = text.charCodeAt(0) === 0xfeff ? 1 : 0; i < text.length && records.length < 4; i++) {
    const character = text[i]!;
    if (isQuoted) {
      if (character !== '"') cell += character;
      else if (text[i + 1] === '"') cell += text[++i];
      else isQuoted = false;
    } else if (character === '"') isQuoted = true;
    else if (character === separator) [record, cell] = [[...record, cell], ""];
    else if (character === "\n") end();
    else if (character !== "\r") cell += character;
  }
  if (isWhole && records.length < 4) end();
  const [header = [], ...rows] = records;
  return rows.map((cells) => Object.fromEntries(header.map((name, i) => [name, cells[i] ?? ""])));
}

function Upload({ done }: { done: () => void }) {
  const files = useSignal<File[]>([]);
  const rows = useSignal<Record<string, unknown>[]>([]);
  const share = useSignal<number | null>(null);
  const error = useSignal<unknown>(null);
  const made = useSignal<Uploaded | null>(null);
  const columns = [...new Set(rows.value.flatMap((row) => Object.keys(row)))];

  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const [prompt, answer] = [String(form.get("prompt") ?? ""), String(form.get("answer") ?? "")];
    const body = new FormData();
    for (const file of files.value) body.append("file", file);
    for (const field of ["name", "verifier"]) if (form.get(field)) body.set(field, form.get(field)!);
    const known = String(form.get("known") ?? "");
    if (known) body.set("mapping", known);
    else if (prompt) body.set("mapping", JSON.stringify({ prompt, ...(answer ? { answer } : {}) }));
    [error.value, made.value, share.value] = [null, null, 0];
    try {
      made.value = await sendWithProgress(body, (part) => (share.value = part));
      done();
    } catch (failure) {
      error.value = failure;
    }
    share.value = null;
  };
  const choose = async (event: Event) => {
    files.value = [...((event.currentTarget as HTMLInputElement).files ?? [])];
    rows.value = files.value[0] ? await peek(files.value[0]) : [];
  };
  return (
    <aside>
      <form class="card upload" onSubmit={submit} aria-label="Upload">
        <h2>Upload</h2>
        <label>Files <input type="file" multiple required accept=".jsonl,.json,.ndjson,.csv,.parquet,.tar" onChange={(event) => void choose(event)} /></label>
        <p class="quiet">JSON lines, CSV with a header, Parquet, or a tar of JSON. Several files become one dataset.</p>
        <label>Name <input name="name" pattern="[A-Za-z0-9][A-Za-z0-9._\-]{0,99}" placeholder={files.value[0]?.name.split(".")[0] ?? "the file's name"} /></label>
        <label>
          Known file{" "}
          <select name="known">
            <option value="">none</option>
            {["gsm8k", "math", "humaneval", "mbpp", "ifeval", "countdown", "reasoning_gym"].map((each) => <option key={each} value={each}>{each}</option>)}
          </select>
        </label>
        {columns.length > 0 && (
          <>
            <div class="pair">
              {(["prompt", "answer"] as const).map((part) => (
                <label key={part}>
                  {part === "prompt" ? "Prompt" : "Answer"}
                  <select name={part}><option value="">guessed</option>{columns.map((each) => <option key={each} value={each}>{each}</option>)}</select>
                </label>
              ))}
            </div>
            <div class="scroll">
              <table>
                <thead><tr>{columns.map((each) => <th key={each}>{each}</th>)}</tr></thead>
                <tbody>{rows.value.map((row, i) => <tr key={i}>{columns.map((each) => <td key={each} class="peek">{shortened(row[each])}</td>)}</tr>)}</tbody>
              </table>
            </div>
          </>
        )}
        <label>Verifier <input name="verifier" placeholder="none: references are not read now" /></label>
        <button class="primary" disabled={share.value !== null}>Upload</button>
        {share.value !== null && (
          <div class="bar" role="progressbar" aria-label="Upload" aria-valuenow={Math.round(share.value * 100)}><i style={{ width: `${share.value * 100}%` }} /></div>
        )}
        {share.value === 1 && <p class="quiet">Sent; the gateway reads the rows.</p>}
        <Problem error={error.value} />
        {made.value && <Result made={made.value} />}
      </form>
    </aside>
  );
}

/** fetch does not tell how much of a body is sent. */
function sendWithProgress(body: FormData, tell: (share: number) => void): Promise<Uploaded> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", "/v1/datasets");
    request.responseType = "json";
    request.upload.onprogress = ({ loaded, total }) => tell(total ? loaded / total : 0);
    request.onerror = () => reject(new TypeError());
    request.onload = () => {
      const answer = request.response as { detail?: string; problems?: { path: string; message: string }[] } | null;
      if (request.status < 300) resolve(answer as unknown as Uploaded);
      else reject(new Refusal(request.status, answer?.detail ?? request.statusText, answer?.problems ?? []));
    };
    request.send(body);
  });
}

function Result({ made }: { made: Uploaded }) {
  const mapping = typeof made.mapping === "string" ? made.mapping : Object.entries(made.mapping).filter(([, value]) => value != null).map(([part, column]) => `${part} from ${Array.isArray(column) ? column.join(" and ") : String(column)}`).join(", ");
  return (
    <div role="status">
      <p><a href={`/datasets/${encodeURIComponent(made.name)}`}>{made.name}</a> has {number(made.rows, 0)} rows{made.added ? "" : ": it was there before"}.</p>
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
