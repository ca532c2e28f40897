// Submit a run: a form over the run config, from a recipe, an earlier run or its checkpoint, that is checked while one types.

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { type Run, type RunRecord, type Schemas, Refusal, get, mayChange, post, words } from "./api";
import { flat, written } from "./config";
import { bytes } from "./format";
import { Marked, Problem, useLoaded } from "./parts";
import { ask, go, query, runPath } from "./router";
import { type Key, isOff, keysOf, minimal, named, parsed, withKey, yaml } from "./schema";

type DryRun = Schemas["DryRun"];
type Recipe = Schemas["RecipeModel"];
type Config = Record<string, unknown>;
const PAUSE = 500; // ms without typing before a check
const ALWAYS = ["model.path", "data.dataset"];

/** What the address asks for: values by key. */
const asked = () => new Map(query.value.getAll("set").map((pair) => [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)]));

function change(key: string, text: string | null): void {
  const next = new URLSearchParams(location.search);
  const values = asked();
  if (text === null) values.delete(key);
  else values.set(key, text);
  next.delete("set");
  for (const [name, value] of values) next.append("set", `${name}=${value}`);
  go(`/submit?${next}`, { replace: true });
}

export function Submit() {
  const from = query.value.get("from");
  const { data, error } = useLoaded(
    async (signal) => {
      const [{ recipes }, schema, { datasets }, run] = await Promise.all([
        get("/v1/recipes", { signal }),
        get("/v1/schema", { signal }),
        get("/v1/datasets", { signal }),
        from ? (get("/v1/runs/{run}", { path: { run: from }, signal }) as Promise<RunRecord>) : null,
      ]);
      return { recipes, schema, datasets: datasets.map(({ name }) => name), run };
    },
    from ?? "",
  );
  return (
    <main id="main" class="submit">
      <header class="bar"><h1 tabIndex={-1}>{!from ? "Submit a run" : query.value.has("at") ? "Fork a run" : "Run again with a change"}</h1></header>
      <Problem error={error} />
      {data ? <Form {...data} /> : !error && <p class="quiet empty">Loading…</p>}
    </main>
  );
}

interface Loaded {
  recipes: Recipe[];
  schema: unknown;
  datasets: string[];
  run: RunRecord | null;
}

function Form({ recipes, schema, datasets, run }: Loaded) {
  const name = query.value.get("recipe") ?? run?.recipe ?? "grpo";
  const recipe = recipes.find((each) => each.name === name);
  const base = run ? named(run) : ((recipe?.config ?? {}) as Config);
  const kind = String(base["type"] ?? "rl");
  const all = useMemo(() => keysOf(schema, kind), [schema, kind]);
  const keys = all.leaves;
  const values = asked();
  const fork = run && query.value.has("at") ? { run: run.id, step: Number(query.value.get("at")) } : null;
  // A fork has the config of its run: only what changes is sent.
  const start = useMemo(() => (run && !fork ? minimal(base, recipe?.config, all) : {}), [run, recipe, all, !fork]);
  const config = [...values].reduce((config, [key, text]) => withKey(config, key, parsed(text, keys.get(key))), start);
  const runName = query.value.get("name") ?? "";
  const pool = query.value.get("pool") ?? (fork ? "" : run?.pool) ?? "";
  const body: Body = {
    ...(fork ? { step: fork.step } : recipe ? { recipe: name } : {}),
    config,
    ...(runName ? { name: runName } : {}),
    ...(pool ? { pool } : {}),
    priority: Number(query.value.get("priority") ?? 0),
  };
  const check = useCheck(body, fork?.run ?? null);
  const flatBase = flat(base);
  const own = [...flat(recipe?.config ?? {}).keys()].filter((key) => key !== "type");
  const shown = [...new Set([...ALWAYS, ...own, ...values.keys()])].filter((key) => values.has(key) || ((keys.has(key) || flatBase.has(key)) && !isOff(key, values)));
  return (
    <div class="columns">
      <form onSubmit={(event) => event.preventDefault()}>
        <fieldset>
          <legend>Start from</legend>
          {fork && <p>The checkpoint of step {fork.step} of <a href={runPath(fork.run, "checkpoints")}>{run?.name}</a>: its weights, the optimizer's state and the place in the data, with your changes of the config. That run stays as it is.</p>}
          {run && !fork && <p>Run <a href={runPath(run.id)}>{run.name}</a>: its whole config, and your changes over it. <a href="/submit">From a recipe instead</a></p>}
          {!run && (
            <>
              <select id="recipe" aria-label="Recipe" value={name} onChange={(event) => ask({ recipe: event.currentTarget.value })}>
                {recipes.map((each) => <option key={each.name} value={each.name} selected={each.name === name}>{each.name}</option>)}
              </select>
              <p class="quiet when">{recipe?.when.replace(/\.[^.]*: headrace submit .*$/s, ".") ?? `There is no recipe ${name}.`}</p>
            </>
          )}
          <div class="pair">
            <label>Name <input value={runName} placeholder={fork ? `${run?.name}-fork` : (run?.name ?? name)} onInput={(event) => ask({ name: event.currentTarget.value || null })} /></label>
            <label>Pool <input value={pool} placeholder={run?.pool ?? "default"} onInput={(event) => ask({ pool: event.currentTarget.value || null })} /></label>
            <label>Priority <input type="number" value={query.value.get("priority") ?? ""} placeholder="0" onInput={(event) => ask({ priority: event.currentTarget.value || null })} /></label>
          </div>
        </fieldset>
        <fieldset>
          <legend>Config</legend>
          {shown.map((key) => (
            <Field
              key={key}
              name={key}
              about={keys.get(key)}
              before={flatBase.get(key)}
              text={values.get(key)}
              problem={check.problems.find(({ path }) => path === key)?.message}
              suggestions={key.endsWith("dataset") ? datasets : []}
            />
          ))}
          <AddKey keys={keys} shown={shown} />
        </fieldset>
      </form>
      <aside>
        <Checked check={check} shown={shown} label={fork ? "Fork" : "Submit"} submit={() => sendIt(body, fork?.run ?? null, {}).then((made) => go(runPath((made as Run).id)))} />
        <SameAs body={body} fork={fork?.run ?? null} />
      </aside>
    </div>
  );
}

interface FieldProps {
  name: string;
  about: Key | undefined;
  before: unknown;
  text: string | undefined;
  problem: string | undefined;
  suggestions: string[];
}

function Field({ name, about, before, text, problem, suggestions }: FieldProps) {
  const fallback = before === undefined ? about?.fallback : before;
  const placeholder = fallback === undefined ? "" : written(fallback);
  const id = `key-${name}`;
  const common = { id, "aria-describedby": `${id}-about`, "aria-invalid": problem !== undefined };
  const set = (value: string) => change(name, value === "" || value === placeholder ? null : value);
  const choices = about?.type === "boolean" ? ["true", "false"] : (about?.choices ?? []);
  return (
    <div class={text === undefined ? "field" : "field changed"}>
      <label for={id}><code>{name}</code></label>
      {(about?.type === "boolean" || about?.type === "choice") && choices.length > 1 ? (
        <select {...common} value={text ?? placeholder} onChange={(event) => set(event.currentTarget.value)}>
          {[...new Set([placeholder, ...choices, ...(about.isNullable ? ["null"] : [])])].map((each) => <option key={each} value={each} selected={each === (text ?? placeholder)}>{each}</option>)}
        </select>
      ) : (
        <input {...common} list={suggestions.length ? `${id}-list` : undefined} inputMode={about?.type === "number" ? "decimal" : "text"} autocomplete="off" spellcheck={false} value={text ?? ""} placeholder={placeholder} onInput={(event) => set(event.currentTarget.value)} />
      )}
      {suggestions.length > 0 && <datalist id={`${id}-list`}>{suggestions.map((each) => <option key={each} value={each} />)}</datalist>}
      {text !== undefined && <button type="button" class="icon" aria-label={`Take back ${name}`} onClick={() => change(name, null)}>×</button>}
      <p id={`${id}-about`} class={problem && !isMissing(problem) ? "problem" : "quiet"} title={about?.description}><Marked text={problem?.replace(/ \(on the command line [^)]*\)/, "") ?? about?.description ?? ""} /></p>
    </div>
  );
}

function AddKey({ keys, shown }: { keys: Map<string, Key>; shown: string[] }) {
  const field = useRef<HTMLInputElement>(null);
  const text = useSignal("");
  const wanted = text.value.toLowerCase().trim();
  const hits = wanted ? [...keys.values()].filter(({ key, description }) => !shown.includes(key) && `${key} ${description}`.toLowerCase().includes(wanted)).sort((a, b) => Number(!a.key.includes(wanted)) - Number(!b.key.includes(wanted))).slice(0, 8) : [];
  const add = ({ key, fallback, choices }: Key) => {
    const only = choices.length === 1 ? choices[0]! : "";
    change(key, fallback === undefined ? only : written(fallback));
    text.value = "";
    field.current?.focus();
  };
  return (
    <div class="addkey">
      <input ref={field} type="search" aria-label="Add a key" placeholder={`Add one of ${keys.size} keys: search names and descriptions`} value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
      <ul>
        {hits.map((key) => (
          <li key={key.key}>
            <button type="button" onClick={() => add(key)}><code>{key.key}</code> <span class="quiet">{key.description.split("\n")[0]}</span></button>
          </li>
        ))}
      </ul>
    </div>
  );
}

interface Check {
  isChecking: boolean;
  answer: DryRun | null;
  error: unknown;
  problems: { path: string; message: string }[];
}

interface Body {
  recipe?: string;
  step?: number;
  config: Config;
  name?: string;
  pool?: string;
  priority: number;
}

/** Submit a run, or a fork of one. */
const sendIt = (body: object, fork: string | null, { dry_run = false, signal }: { dry_run?: boolean; signal?: AbortSignal }): Promise<unknown> => {
  const query = { dry_run };
  if (fork) return post("/v1/runs/{run}/fork", { path: { run: fork }, query, body: body as Schemas["Fork"], ...(signal ? { signal } : {}) });
  return post("/v1/runs", { query, body: body as Schemas["RunSubmission"], ...(signal ? { signal } : {}) });
};

/** Ask the gateway what a submission would be, after each pause in typing. */
function useCheck(body: object, fork: string | null): Check {
  const state = useSignal<Check>({ isChecking: true, answer: null, error: null, problems: [] });
  const key = JSON.stringify(body);
  useEffect(() => {
    const controller = new AbortController();
    state.value = { ...state.peek(), isChecking: true };
    const timer = setTimeout(() => {
      sendIt(JSON.parse(key) as object, fork, { dry_run: true, signal: controller.signal }).then(
        (answer) => (state.value = { isChecking: false, answer: answer as DryRun, error: null, problems: [] }),
        (error: unknown) => {
          if (controller.signal.aborted) return;
          state.value = { isChecking: false, answer: null, error, problems: error instanceof Refusal ? error.problems : [] };
        },
      );
    }, PAUSE);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [key, fork]);
  return state.value;
}

function Checked({ check, shown, label, submit }: { check: Check; shown: string[]; label: string; submit: () => Promise<unknown> }) {
  const failure = useSignal<unknown>(null);
  const { answer, error, problems, isChecking } = check;
  const elsewhere = problems.filter(({ path }) => !shown.includes(path));
  const missing = problems.filter((each) => shown.includes(each.path) && isMissing(each.message));
  const wrong = problems.length - elsewhere.length - missing.length;
  const isReady = answer !== null && !answer.refusals.length && !isChecking;
  const needs = answer?.estimate ? ([["Learner", answer.estimate.learner], ["Worker", answer.estimate.rollout], ["Host", answer.estimate.host], ["Disk", answer.estimate.disk]] as const) : [];
  return (
    <section class="card" aria-label="Dry run" aria-busy={isChecking}>
      <div class="line">
        <h2>Dry run</h2>
        <span class="quiet" role="status">{isChecking ? "checking…" : isReady ? "it would be queued" : missing.length && missing.length === problems.length ? "not complete yet" : "it would be refused"}</span>
        <button class="primary" disabled={!isReady || !mayChange.value} onClick={() => submit().catch((error: unknown) => (failure.value = error))}>{label}</button>
      </div>
      <Problem error={failure.value} />
      {error && !problems.length ? <p class="problem">{words(error)}</p> : null}
      {missing.length > 0 && <p class="quiet">It lacks {missing.map(({ path }, i) => <span key={path}>{i > 0 && " and "}<label for={`key-${path}`}><code>{path}</code></label></span>)}.</p>}
      {wrong > 0 && <p class="problem">{wrong === 1 ? "One key" : `${wrong} keys`} cannot be used; see there.</p>}
      <ul class="problem">{elsewhere.map(({ path, message }) => <li key={path}><code>{path}</code> {message}</li>)}</ul>
      <ul class="problem">{answer?.refusals.map((each) => <li key={each}>{each}</li>)}</ul>
      {answer && (
        <>
          <p>{answer.max_steps === null ? "It trains until its data ends." : `It trains ${answer.max_steps} steps.`}</p>
          {needs.length > 0 && (
            <table class="needs">
              <thead><tr><th>Needs</th><th class="n">Memory</th><th class="n">of</th><th>For</th></tr></thead>
              <tbody>
                {needs.map(([label, need]) => need && (
                  <tr key={label}>
                    <td>{label}</td><td class="n strong">{bytes(need.needed)}</td><td class="n">{bytes(need.memory)}</td>
                    <td class={need.fits === false ? "problem" : "quiet"}>{need.fits === false ? need.advice?.join("; ") : largest(need.parts)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
          {!answer.estimate && <p class="quiet">The gateway cannot tell what it needs: the model's folder is not here.</p>}
          <ul class="warned">{answer.warnings.map((each) => <li key={each}>{each}</li>)}</ul>
          {answer.preview?.rows?.[0] && (
            <details>
              <summary>The first row as the model reads it</summary>
              <pre>{answer.preview.rows[0].pieces?.map((piece, i) => (piece.trained ? <mark key={i}>{piece.text}</mark> : <span key={i}>{piece.text}</span>))}</pre>
            </details>
          )}
        </>
      )}
    </section>
  );
}

/** Whether a problem only says that a key has no value yet. */
const isMissing = (message: string) => message.startsWith("is required");

const largest = (parts: Record<string, number>) =>
  Object.entries(parts).sort(([, a], [, b]) => b - a).slice(0, 2).map(([name, size]) => `${name} ${bytes(size)}`).join(", ");

const FORMS = ["Command line", "YAML", "curl", "Python"] as const;

/** The same submission for a terminal or a program. */
function SameAs({ body, fork }: { body: Body; fork: string | null }) {
  const form = useSignal<(typeof FORMS)[number]>("Command line");
  const sent = { ...body, ...(body.priority ? {} : { priority: undefined }) };
  const texts = {
    "Command line": commandLine(body, fork),
    YAML: yaml(body.config).trimStart(),
    curl: `curl -H "Authorization: Bearer KEY" ${location.origin}/v1/runs${fork ? `/${fork}/fork` : ""} \\\n  -H 'content-type: application/json' \\\n  -d ${quoted(JSON.stringify(sent, null, 1))}`,
    Python: fork ? pythonFork(sent, fork) : python(sent),
  };
  return (
    <section class="card" aria-label="The same elsewhere">
      <div class="tabs" role="group" aria-label="Form">
        {FORMS.map((name) => <button key={name} class="link" aria-pressed={name === form.value} onClick={() => (form.value = name)}>{name}</button>)}
      </div>
      <pre tabIndex={0}>{texts[form.value]}</pre>
      <button onClick={() => void navigator.clipboard?.writeText(texts[form.value])}>Copy</button>
    </section>
  );
}

const quoted = (text: string) => `'${text.replace(/'/g, `'\\''`)}'`;

function commandLine({ recipe, step, config, name, pool, priority }: Body, fork: string | null): string {
  const options = [
    ...(name ? [`--name ${quoted(name)}`] : []),
    ...(pool ? [`--pool ${pool}`] : []),
    ...(priority ? [`--priority ${priority}`] : []),
    ...[...flat(config)].map(([key, value]) => `--set ${/^[\w./@:+-]*$/.test(written(value)) ? `${key}=${written(value)}` : quoted(`${key}=${written(value)}`)}`),
  ];
  const command = fork ? `headrace fork ${fork}@${step}` : `headrace submit ${recipe ?? ""}`.trim();
  return [command, ...options].join(" \\\n    ");
}

/** The submission with the Python client (docs/python.md). */
function python({ config, ...rest }: { recipe?: string; config: Config; name?: string; pool?: string; priority?: number }): string {
  const [model, others] = taken(config, "model", "path");
  const [dataset, remaining] = taken(others, "data", "dataset");
  const values = { recipe: rest.recipe, model, dataset, config: Object.keys(remaining).length ? remaining : undefined, name: rest.name, pool: rest.pool, priority: rest.priority };
  const lines = Object.entries(values).filter(([, value]) => value !== undefined).map(([key, value]) => `    ${key}=${literal(value, "    ")},\n`);
  return `from headrace import Client\n\nclient = Client("${location.origin}", api_key="KEY")\nrun = client.runs.submit(\n${lines.join("")})\nprint(run.id)`;
}

/** The fork with the Python client. */
function pythonFork({ step, config, name, pool, priority }: Omit<Body, "priority"> & { priority?: number | undefined }, fork: string): string {
  const values = { config: Object.keys(config).length ? config : undefined, name, pool, priority };
  const lines = Object.entries(values).filter(([, value]) => value !== undefined).map(([key, value]) => `    ${key}=${literal(value, "    ")},\n`);
  return `from headrace import Client\n\nclient = Client("${location.origin}", api_key="KEY")\nrun = client.runs.get(${JSON.stringify(fork)}).fork(\n    ${step},\n${lines.join("")})\nprint(run.id)`;
}

/** A text of the config and the config without it; undefined if it is no text. */
function taken(config: Config, part: string, key: string): [string | undefined, Config] {
  const { [part]: inner, ...others } = config;
  const { [key]: value, ...rest } = (inner ?? {}) as Config;
  if (typeof value !== "string") return [undefined, config];
  return [value, Object.keys(rest).length ? { ...config, [part]: rest } : others];
}

/** A value of JSON as Python writes it. */
function literal(value: unknown, indent: string): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const lines = Array.isArray(value) ? value.map((each) => literal(each, inner)) : Object.entries(value as Config).map(([key, each]) => `${JSON.stringify(key)}: ${literal(each, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return lines.length ? `${open}\n${lines.map((line) => `${inner}${line},\n`).join("")}${indent}${close}` : `${open}${close}`;
}
