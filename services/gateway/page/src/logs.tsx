// What the processes of a run, or of the installation, logged: the newest lines, and more as they come.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { type Schemas, address, send } from "./api";
import { query } from "./router";

export type Line = Schemas["LogLine"];
type Page = Schemas["LogPage"];

const KEPT = 2000;
const FIRST = 300;
const POLL = 2000; // ms

const lines = signal<Line[]>([]);
const error = signal<unknown>(null);
/** Processes of the lines that came since the log was opened, also of those that a filter has hidden since. */
const processes = signal<string[]>([]);
let shown = "";

/** Follow the log of a run, or of the installation, while the view is there: the lines that fit the filters of the address. */
export function useLog(run: string | null): { lines: Line[]; processes: string[]; error: unknown } {
  const process = query.value.get("process") ?? "";
  const level = query.value.get("level") ?? "";
  const isOff = process === "events";
  useEffect(() => {
    if (shown !== (run ?? "/")) processes.value = [];
    shown = run ?? "/";
    lines.value = [];
    error.value = null;
    if (isOff) return undefined;
    const controller = new AbortController();
    void keepReading(run, { process, level }, controller.signal);
    return () => controller.abort();
  }, [run, process, level]);
  return { lines: lines.value, processes: processes.value, error: error.value };
}

async function keepReading(run: string | null, wanted: Record<string, string>, stop: AbortSignal): Promise<void> {
  let asked: Record<string, unknown> = { newest: FIRST };
  while (!stop.aborted) {
    let hasMore = false;
    if (document.visibilityState === "visible") {
      try {
        const page = (await send(address(run ? "/v1/runs/{run}/logs" : "/v1/logs", { run }, { ...wanted, ...asked }), { signal: stop })) as Page;
        if (page.logs.length) add(page.logs);
        [asked, hasMore] = [{ cursor: page.later, limit: 1000 }, page.next !== null];
        error.value = null;
      } catch (failure) {
        if (!stop.aborted) error.value = failure;
      }
    }
    if (!hasMore) await new Promise((resolve) => setTimeout(resolve, POLL));
  }
}

function add(more: Line[]): void {
  lines.value = [...lines.value, ...more].slice(-KEPT);
  const all = new Set([...processes.value, ...more.map(({ process }) => process)]);
  if (all.size > processes.value.length) processes.value = [...all].sort();
}

/** The choices of the filter: each kind of process, and each process of a kind that has several. */
export function choices(processes: string[]): [string, string][] {
  const kinds = new Map<string, string[]>();
  for (const process of processes) {
    const kind = process.split("/")[0] ?? process;
    kinds.set(kind, [...(kinds.get(kind) ?? []), process]);
  }
  return [...kinds].flatMap(([kind, all]) => [[kind, kind] as [string, string], ...(all.length > 1 ? all.filter((one) => one !== kind).map((one): [string, string] => [one, `– ${one.slice(kind.length + 1)}`]) : [])]);
}
