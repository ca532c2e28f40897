// The events of a run: the newest ones that the gateway keeps, and then as they happen.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { address, refusalOf } from "./api";
import { written } from "./config";
import { clock, moment, number } from "./format";
import { type Event, on, watched } from "./live";
import { Problem } from "./parts";

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

export function Events({ run }: { run: string }) {
  useEffect(() => follow(run), [run]);
  const listed = events.value.filter(({ kind }) => kind !== "step" && kind !== "progress").reverse();
  return (
    <>
      <Problem error={error.value} />
      {!listed.length && <p class="quiet empty">No event is kept.</p>}
      <ol class="events">
        {listed.map((event) => (
          <li key={event.id} class={isBad(event) ? "bad" : undefined}>
            <time dateTime={new Date(event.time * 1000).toISOString()} title={moment(event.time)}>{clock(event.time)}</time>
            <span class="kind">{event.kind}</span>
            <span>{event.kind === "tracker" ? <Carried data={event.data} /> : said(event)}</span>
          </li>
        ))}
      </ol>
    </>
  );
}

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
  if (kind === "checkpoint") return `step ${text("step")}: ${text("directory")}`;
  if (kind === "edit") return edited(data);
  return JSON.stringify(data);
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
