// What changes, as it changes: one stream of the gateway for all tabs of the browser.
//
// A browser opens six connections to a host, so a stream a tab would block the seventh. The tab that holds the lock reads
// the stream and tells the others. The browser gives the lock to the next tab when that tab closes. Without locks (plain
// HTTP under a name other than localhost) each visible tab reads a stream of its own, and a hidden one reads none.

import { effect, signal } from "@preact/signals";
import { type Run, type Schemas, needsKey, refusalOf } from "./api";

export interface Event {
  run: string;
  id: string;
  time: number;
  kind: string;
  data: Record<string, unknown>;
}
export type Worker = Schemas["WorkerRecord"];

interface Told {
  runs: { runs: Run[]; deleted: string[] };
  event: Event;
  workers: { workers: Worker[] };
  reset: Record<string, never>;
}
type Kind = keyof Told;
type Message = { kind: Kind; data: unknown; id: string } | { wants: string[]; tab: string } | { who: true };

const RETRY = 2000; // ms
const LOCK = "headrace-stream";
const tab = Math.random().toString(36).slice(2);
const channel = new BroadcastChannel(LOCK);
const listeners = new Map<Kind, Set<(data: never) => void>>();
const wanted = new Map<string, string[]>(); // runs whose events each tab shows
let lastId = "";
let reading: AbortController | null = null;

/** The run whose events this tab shows. */
export const watched = signal<string[]>([]);

/** Call `listener` for each message of a kind. Return the function that ends it. */
export function on<K extends Kind>(kind: K, listener: (data: Told[K]) => void): () => void {
  const all = listeners.get(kind) ?? new Set();
  listeners.set(kind, all);
  all.add(listener as (data: never) => void);
  return () => all.delete(listener as (data: never) => void);
}

function tell(kind: Kind, data: unknown, id: string): void {
  lastId = id || lastId;
  for (const listener of listeners.get(kind) ?? []) listener(data as never);
}

function want(from: string, runs: string[]): void {
  const before = runsOfAll().join();
  if (runs.length) wanted.set(from, runs);
  else wanted.delete(from);
  if (runsOfAll().join() !== before) reading?.abort();
}

const runsOfAll = () => [...new Set([...wanted.values()].flat())].sort();

channel.addEventListener("message", ({ data }: MessageEvent<Message>) => {
  if ("wants" in data) want(data.tab, data.wants);
  else if ("who" in data) channel.postMessage({ wants: watched.value, tab } satisfies Message);
  else tell(data.kind, data.data, data.id);
});
addEventListener("pagehide", () => channel.postMessage({ wants: [], tab } satisfies Message));

/** Begin to listen, for as long as the page is open. */
export function listen(): void {
  effect(() => {
    const runs = watched.value;
    want(tab, runs);
    channel.postMessage({ wants: runs, tab } satisfies Message);
  });
  if (navigator.locks) {
    void navigator.locks.request(LOCK, async () => {
      channel.postMessage({ who: true } satisfies Message);
      await read(() => true);
    });
  } else {
    const visible = () => document.visibilityState === "visible";
    document.addEventListener("visibilitychange", () => (visible() ? void read(visible) : reading?.abort()));
    if (visible()) void read(visible);
  }
}

async function read(goesOn: () => boolean): Promise<void> {
  while (goesOn()) {
    reading = new AbortController();
    const { signal } = reading;
    try {
      await stream(signal);
    } catch {
      if (signal.aborted) continue; // other runs are wanted
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY));
  }
}

async function stream(signal: AbortSignal): Promise<void> {
  if (needsKey.value) return;
  const runs = runsOfAll().map((run) => `run=${encodeURIComponent(run)}`);
  const headers: HeadersInit = lastId ? { "last-event-id": lastId } : {};
  const response = await fetch(`/v1/stream?${runs.join("&")}`, { headers, signal });
  // A run that a tab has shown was deleted: ask all tabs again what they show.
  if (response.status === 404) {
    wanted.clear();
    if (watched.value.length) wanted.set(tab, watched.value);
    channel.postMessage({ who: true } satisfies Message);
  }
  if (!response.ok || !response.body) throw await refusalOf(response, "/v1/stream");
  // What changed between the first lists and this stream was told to nobody.
  if (!lastId) say("reset", {}, "");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (text + value).split("\n\n");
    text = blocks.pop() ?? "";
    for (const block of blocks) parse(block);
  }
}

/** One event of the stream: lines of `event:`, `id:` and `data:`. A comment has none. */
function parse(block: string): void {
  const fields = new Map<string, string>();
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    if (at > 0) fields.set(line.slice(0, at), line.slice(at + 1).trimStart());
  }
  const [kind, data, id = ""] = [fields.get("event"), fields.get("data"), fields.get("id")];
  if (!kind || data === undefined) return;
  say(kind as Kind, JSON.parse(data), id);
}

/** Tell this tab and the others. */
function say(kind: Kind, data: unknown, id: string): void {
  tell(kind, data, id);
  channel.postMessage({ kind, data, id } satisfies Message);
}
