// Metrics for charts, and how they are smoothed.

import { address, send } from "./api";

export interface Series {
  run: string;
  name: string;
  x: number[];
  mean: (number | null)[];
  min: number[] | null;
  max: number[] | null;
}

export type Axis = "step" | "time" | "tokens" | "samples";

export interface Wanted {
  runs: string[];
  names: string[];
  points: number;
  x?: Axis;
  from?: number | null;
  to?: number | null;
}

export async function loadSeries(wanted: Wanted, signal?: AbortSignal): Promise<Series[]> {
  if (!wanted.runs.length || !wanted.names.length) return [];
  const answer = await send(address("/v1/series", {}, { ...wanted }), { signal: signal ?? null });
  return (answer as { series: Series[] }).series;
}

/** The exponential moving average of values, corrected for its beginning. `weight` is that of the past, from 0 to 1. */
export function smoothed(values: (number | null)[], weight: number): (number | null)[] {
  let mean = 0;
  let sum = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    sum = weight * sum + (1 - weight);
    return mean / sum;
  });
}

/** Several series on one list of places. */
export function aligned(series: { x: number[]; columns: (number | null)[][] }[]): [number[], ...(number | null)[][]] {
  const only = series[0];
  if (series.length === 1 && only) return [only.x, ...only.columns];
  const places = [...new Set(series.flatMap(({ x }) => x))].sort((a, b) => a - b);
  const at = new Map(places.map((place, i) => [place, i]));
  const columns = series.flatMap(({ x, columns }) =>
    columns.map((column) => {
      const wide = new Array<number | null>(places.length).fill(null);
      column.forEach((value, i) => (wide[at.get(x[i]!)!] = value));
      return wide;
    }),
  );
  return [places, ...columns];
}

export interface Group {
  title: string;
  question: string;
  names: string[];
}

const GROUPS: [title: string, question: string, names: RegExp][] = [
  ["Loss", "Does the model learn its data?", /^$/],
  ["Reward", "Does the policy earn more?", /^(reward|curriculum|baseline)\/|^dataset\/(reward|pass_rate|share|filtered)\//],
  ["Evaluation", "Is it better on rows that it does not train?", /^(evaluation|validation)\//],
  ["Lengths", "Do answers grow, or get cut off?", /^(response|prompt|session)\/|^dataset\/(tokens|truncated)\//],
  ["Policy", "How far does it move, and does it still explore?", /^mismatch\/|^train\/(kl|teacher_kl|entropy|ratio|clip|proximal|ess|corrected)/],
  ["Optimizer", "Are the updates steady?", /^(critic|router)\/|^train\/(loss|total_loss|grad_norm|lr|updates|accuracy|margin|chosen|rejected|epoch|tokens|flops)|^data\//],
  ["Staleness", "How old are the answers that it trains?", /^staleness\//],
  ["Throughput", "Where does the time go?", /^(time|throughput|wire|push|memory)\/|^train\/(mfu|shared_tokens)/],
  ["Workers", "Do the workers keep up?", /^workers$|admission/],
];
const LOSS = /^(train|validation)\/(loss|bits_per_byte|accuracy|margin)/;
const NO_CHART = /^(step|version|time|bottleneck|done|total)$|_(low|high)$/;

/** The metrics of a run in groups, in the order in which a reader asks. A supervised run begins with its loss. */
export function grouped(names: string[], kind: string): Group[] {
  const groups = GROUPS.map(([title, question]) => ({ title, question, names: [] as string[] }));
  const other: Group = { title: "Other", question: "What else was written?", names: [] };
  for (const name of names) {
    if (NO_CHART.test(name)) continue;
    const isAdmission = /admission|^workers$/.test(name);
    const place = kind === "sft" && LOSS.test(name) ? 0 : isAdmission ? GROUPS.length - 1 : GROUPS.findIndex(([, , own]) => own.test(name));
    (groups[place] ?? other).names.push(name);
  }
  for (const group of groups) group.names.sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  return [...groups, other].filter((group) => group.names.length);
}

const FIRST = ["reward/mean", "train/loss", "validation/loss", "train/loss_smoothed", "reward/std", "train/entropy", "train/kl", "response/tokens_mean", "time/step"];
const rank = (name: string) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
