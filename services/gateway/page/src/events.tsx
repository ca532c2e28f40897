// The events of a run: the newest ones that the gateway keeps, and then as they happen; with the lines of its processes.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { address, refusalOf } from "./api";
import { written } from "./config";
import { clock, moment, number } from "./format";
import { type Event, on, watched } from "./live";
import { type Line, choices, useLog } from "./logs";
import { Choice, Problem, SearchField } from "./parts";
import { query } from "./router";

const KEPT = 1000;
const QUIET = 400; // ms without another one, after which the past has come

const events = signal<Event[]>([]);
const error = signal<unknown>(null);
let shown = "";

/** Follow the events of a run. Return the function that ends it. */
export function follow(run: string): () => void {
  if (shown !== run) events.value = [];
  shown = run;
  error.value = null;
  watched.value = [run];
  const controller = new AbortController();
  past(run, controller).catch((failure: unknown) => controller.signal.aborted || (error.value = failure));
  const end = on("event", (event) => event.run === run && add([event]));
  return () => {
    controller.abort();
    watched.value = [];
    end();
  };
}

function add(more: Event[]): void {
  const all = new Map([...events.value, ...more].map((event) => [event.id, event]));
  events.value = [...all.values()].sort((a, b) => order(a.id, b.id)).slice(-KEPT);
}

/** Compare two ids, `MILLISECONDS-NUMBER` each. */
function order(a: string, b: string): number {
  const [[at = 0, number = 0], [other = 0, second = 0]] = [a.split("-").map(Number), b.split("-").map(Number)];
  return at - other || number - second;
}

/** Read the events so far. Their stream stays open while the run lives, so it is left when nothing more comes. */
async function past(run: string, controller: AbortController): Promise<void> {
  const url = address("/v1/runs/{run}/events", { run }, { newest: KEPT });
  const response = await fetch(url, { signal: controller.signal });
  if (!response.ok || !response.body) throw await refusalOf(response, url);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const quiet = new Promise<{ done: true; value: undefined }>((resolve) => setTimeout(() => resolve({ done: true, value: undefined }), QUIET));
    const { done, value } = await Promise.race([reader.read(), quiet]);
    if (done) break;
    text += value;
  }
  controller.abort();
  const lines = text.split("\n").filter((line) => line.startsWith("data: "));
  add(lines.map((line) => ({ ...(JSON.parse(line.slice("data: ".length)) as Event), run })));
}

export const checkpoints = () => events.value.filter(({ kind }) => kind === "checkpoint").map(({ data }) => Number(data["step"]));

/** Events and lines of logs as one list, newest first. */
export function Events({ run }: { run: string }) {
  useEffect(() => follow(run), [run]);
  const log = useLog(run);
  const [process, level, text] = ["process", "level", "find"].map((name) => query.value.get(name) ?? "");
  const told = process === "" || process === "events" ? events.value.filter(({ kind }) => kind !== "step" && kind !== "progress") : [];
  const fits = (...words: string[]) => !text || words.some((word) => word.toLowerCase().includes(text.toLowerCase()));
  const isLoud = level === "warning" || level === "error";
  const rows = [
    ...told.filter((event) => (!isLoud || isBad(event)) && fits(event.kind, said(event))).map((event) => ({ key: event.id, time: event.time, row: <Told key={event.id} event={event} /> })),
    ...log.lines.filter((line) => fits(line.process, line.text)).map((line) => ({ key: line.id, time: line.time, row: <Written key={`${line.id} ${line.process}`} line={line} /> })),
  ].sort((a, b) => b.time - a.time);
  return (
    <>
      <Filters of={[["", "all"], ["events", "events"], ...choices(log.processes)]} />
      <Problem error={error.value ?? log.error} />
      {!rows.length && <p class="quiet empty">No event or line is kept, or none fits.</p>}
      <ol class="events">{rows.map(({ row }) => row)}</ol>
    </>
  );
}

function Filters({ of }: { of: [string, string][] }) {
  return (
    <div class="toolbar">
      <Choice name="process" label="Process" options={of} />
      <Choice name="level" label="Level" options={[["", "all"], ["info", "info"], ["warning", "warning"], ["error", "error"]]} />
      <SearchField name="find" label="Find in what is shown" placeholder="Find" />
    </div>
  );
}

/** What the gateway and the reward service logged, and learners and workers without a run. */
export function InstallationLog() {
  const log = useLog(null);
  const text = (query.value.get("find") ?? "").toLowerCase();
  const fitting = log.lines.filter((line) => `${line.process} ${line.text}`.toLowerCase().includes(text)).sort((a, b) => b.time - a.time);
  return (
    <section class="below" aria-label="Log of the installation">
      <h2>Log of the installation <span class="quiet">what a run's processes log stands in its tab "events and logs"</span></h2>
      <Filters of={[["", "all"], ...choices(log.processes)]} />
      <Problem error={log.error} />
      {!fitting.length && <p class="quiet">No line is kept, or none fits.</p>}
      <ol class="events">{fitting.map((line) => <Written key={line.id} line={line} />)}</ol>
    </section>
  );
}

function Told({ event }: { event: Event }) {
  return (
    <li class={isBad(event) ? "event bad" : "event"}>
      <Time at={event.time} />
      <span class="kind">{event.kind}</span>
      <span>{event.kind === "tracker" ? <Carried data={event.data} /> : said(event)}</span>
    </li>
  );
}

export function Written({ line }: { line: Line }) {
  return (
    <li class={line.level}>
      <Time at={line.time} />
      <span class="kind" title={`${line.process} on ${line.host}`}>{line.process}</span>
      <span class="text">{line.text}</span>
    </li>
  );
}

const Time = ({ at }: { at: number }) => <time dateTime={new Date(at * 1000).toISOString()} title={moment(at)}>{clock(at)}</time>;

const isBad = ({ kind, data }: Event) => kind === "warning" || data["state"] === "failed";

/** The tracker that has the metrics, and where. */
function Carried({ data }: { data: Event["data"] }) {
  const place = String(data["place"] ?? "");
  return <>{String(data["tracker"])} has the metrics: {/^https?:\/\//.test(place) ? <a href={place} target="_blank" rel="noopener noreferrer">{place}</a> : place}</>;
}

/** An event in a sentence. */
function said({ kind, data }: Event): string {
  const text = (name: string) => String(data[name] ?? "");
  if (kind === "state") return `${text("state")}${data["reason"] ? `: ${text("reason")}` : ""}`;
  if (kind === "evaluation") {
    const measure = "accuracy" in data ? "accuracy" : "reward";
    return `step ${text("step")}: ${measure} ${number(data[measure] as number)} on ${text("rows")} rows${data["name"] ? ` of ${text("name")}` : ""}`;
  }
  if (kind === "worker") {
    const usual = data["usual_seconds"] ? `, usually ${number(Number(data["usual_seconds"]), 0)} s` : "";
    return `${text("worker")} ${text("state")}${usual}${data["detail"] ? `: ${text("detail")}` : ""}`;
  }
  if (kind === "warning") return text("message");
  if (kind === "checkpoint") return `step ${text("step")}: ${text("directory")}${gone(data["deleted"])}`;
  if (kind === "deleted") return `after its end: ${[...(data["checkpoints"] as string[]), ...(data["rollouts"] ? ["its rollouts"] : [])].join(", ")}`;
  if (kind === "edit") return edited(data);
  if (kind === "paused" || kind === "resumed") return `on request of ${text("by")}`;
  return JSON.stringify(data);
}

/** The older checkpoints that were deleted for a new one. */
function gone(names: unknown): string {
  return Array.isArray(names) && names.length ? ` (in place of ${names.join(", ")})` : "";
}

/** A change of the run: what was asked for, or the step from which the learner has it. */
function edited({ by, changes, step, values }: Record<string, unknown>): string {
  if (values) return `from step ${String(step)}: ${Object.entries(values).map(([key, value]) => `${key} ${inWords(value)}`).join(", ")}`;
  const all = Object.entries((changes ?? {}) as Record<string, { from: unknown; to: unknown }>);
  return `${String(by)} changed ${all.map(([key, { from, to }]) => `${key} from ${inWords(from)} to ${inWords(to)}`).join(", ")}`;
}

/** A value of a change, at most a line long. */
function inWords(value: unknown): string {
  const text = Array.isArray(value) ? value.join(", ") : written(value);
  return text === "" ? "none" : text.length > 60 ? `${text.slice(0, 59)}…` : text;
}
