// The runs that this tab knows, each as a signal of its own: a change redraws what shows that run and nothing else.

import { type Signal, signal } from "@preact/signals";
import { type Run, address, send } from "./api";
import { on } from "./live";

const runs = new Map<string, Signal<Run>>();

export function keep(run: Run): Signal<Run> {
  const known = runs.get(run.id);
  if (known) {
    known.value = run;
    return known;
  }
  const made = signal(run);
  runs.set(run.id, made);
  return made;
}

export const known = (id: string) => runs.get(id);

export const FILTERS = ["q", "state", "recipe", "model", "dataset", "tag", "pool"] as const;
export type Filter = Partial<Record<(typeof FILTERS)[number], string>>;
const PAGE = 50;

/** The list of runs that pass a filter, newest first, page by page; it follows the stream. */
export class RunList {
  readonly ids = signal<string[]>([]);
  readonly next = signal<string | null>(null);
  readonly error = signal<unknown>(null);
  readonly isLoaded = signal(false);
  private filter: Filter = {};
  private timer = 0;
  private round = 0;

  constructor() {
    on("runs", ({ runs, deleted }) => {
      for (const run of runs) keep(run);
      if (deleted.length) this.ids.value = this.ids.value.filter((id) => !deleted.includes(id));
      // A change may add a run to a filtered list, or take one away: the gateway knows.
      const isFiltered = Object.keys(this.filter).length > 0;
      if (isFiltered || runs.some(({ id }) => !this.ids.value.includes(id))) this.soon();
    });
    on("reset", () => this.soon());
  }

  async show(filter: Filter): Promise<void> {
    this.filter = filter;
    this.isLoaded.value = false;
    await this.load();
  }

  private soon(): void {
    if (this.timer || !this.isLoaded.value) return;
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      void this.load();
    }, 1000);
  }

  private async load(): Promise<void> {
    const round = ++this.round;
    try {
      const page = await fetchPage(this.filter, null);
      if (round !== this.round) return; // another filter was asked for meanwhile
      const first = page.runs.map(({ id }) => id);
      // Pages that were shown stay, from the end of the first page on.
      const behind = this.isLoaded.value && first.length ? this.ids.value.indexOf(first.at(-1)!) : -1;
      const others = behind < 0 ? [] : this.ids.value.slice(behind + 1);
      this.ids.value = [...first, ...others.filter((id) => !first.includes(id))];
      if (!others.length) this.next.value = page.next;
      this.error.value = null;
      this.isLoaded.value = true;
    } catch (error) {
      if (round === this.round) this.error.value = error;
    }
  }

  async more(): Promise<void> {
    if (this.next.value === null) return;
    const page = await fetchPage(this.filter, this.next.value);
    this.ids.value = [...new Set([...this.ids.value, ...page.runs.map(({ id }) => id)])];
    this.next.value = page.next;
  }
}

async function fetchPage(filter: Filter, cursor: string | null): Promise<{ runs: Run[]; next: string | null }> {
  const page = (await send(address("/v1/runs", {}, { ...filter, limit: PAGE, cursor }))) as { runs: Run[]; next: string | null };
  for (const run of page.runs) keep(run);
  return page;
}

export const list = new RunList();
