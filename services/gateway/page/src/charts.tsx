// The charts of one or several runs, in groups, with one cursor, one zoom and one look for all.

import { computed, signal } from "@preact/signals";
import { Chart, type Line, type Look } from "./chart";
import { Choice, Problem, useLoaded } from "./parts";
import { ask, query } from "./router";
import { type Axis, type Series, grouped, loadSeries } from "./series";

/** Points of a line: as many as a small chart has pixels, and fewer if many runs share it. */
const pointsOf = (runs: number) => (runs > 4 ? 200 : 400);
const MOST_BANDS = 4; // more of them hide the lines
const PINNED = "headrace-pinned";
const pinned = signal<string[]>(localStorage.getItem(PINNED)?.split(" ").filter(Boolean) ?? []);

function pin(name: string): void {
  pinned.value = pinned.value.includes(name) ? pinned.value.filter((other) => other !== name) : [...pinned.value, name];
  localStorage.setItem(PINNED, pinned.value.join(" "));
}

const AXES: [string, string][] = [["step", "steps"], ["time", "time"], ["tokens", "tokens"], ["samples", "samples"]];
const SMOOTHING: [string, string][] = [["0", "none"], ["0.6", "light"], ["0.9", "strong"], ["0.98", "very strong"]];

const numberOf = (name: string) => {
  const text = query.value.get(name);
  return text === null || !Number.isFinite(Number(text)) ? null : Number(text);
};

/** How all charts look, as the address has it. */
const look = computed<Look>(() => ({
  axis: (query.value.get("x") ?? "step") as Axis,
  isLog: query.value.get("scale") === "log",
  smoothing: numberOf("smooth") ?? 0,
  from: numberOf("from"),
  to: numberOf("to"),
}));

const round = (value: number | null) => (value === null ? null : String(Number(value.toPrecision(6))));
const zoom = (from: number | null, to: number | null) => ask({ from: round(from), to: round(to) });

function Toolbar() {
  const { from, to } = look.value;
  const bound = (name: "from" | "to", value: number | null) => (
    <input
      type="number"
      aria-label={`Show ${name}`}
      placeholder={name}
      value={value ?? ""}
      onChange={(event) => ask({ [name]: event.currentTarget.value || null })}
    />
  );
  return (
    <div class="toolbar">
      <Choice name="x" label="Over" options={AXES} fallback="step" />
      <Choice name="smooth" label="Smoothing" options={SMOOTHING} fallback="0" />
      <Choice name="scale" label="Scale" options={[["linear", "linear"], ["log", "logarithmic"]]} fallback="linear" />
      <span class="choice"><span class="quiet">Range</span> {bound("from", from)} {bound("to", to)}</span>
      {(from !== null || to !== null) && <button onClick={() => zoom(null, null)}>Reset zoom</button>}
    </div>
  );
}

interface Props {
  runs: { id: string; label: string }[];
  names: string[];
  kind: string;
  /** Changes when there may be new values. */
  fresh: unknown;
  marks?: number[];
}

export function Charts({ runs, names, kind, fresh, marks = [] }: Props) {
  const { axis, from, to } = look.value;
  const ids = runs.map(({ id }) => id);
  const key = [ids.join(), names.join(), axis].join("|");
  const { data, error } = useLoaded(
    (signal) => loadSeries({ runs: ids, names, points: pointsOf(ids.length), x: axis, from, to }, signal),
    key,
    `${JSON.stringify(fresh)} ${from} ${to}`,
  );
  if (!names.length) return <p class="quiet empty">No step was reported yet. Charts appear with the first one.</p>;
  const byName = grouping(data ?? []);
  const groups = grouped(names, kind);
  const chosen = pinned.value.filter((name) => names.includes(name));
  if (chosen.length) groups.unshift({ title: "Pinned", question: "", names: chosen });
  return (
    <>
      <Toolbar />
      <Problem error={error} />
      {runs.length > 1 && <Legend runs={runs} />}
      {groups.map(({ title, question, names }) => (
        <section key={title} class="group" aria-label={title}>
          <h2>{title} <span class="quiet">{question}</span></h2>
          <div class="grid">
            {names.map((name) => (
              <Chart
                key={name}
                title={name}
                lines={linesOf(runs, name, byName)}
                look={axis === "step" ? { ...look.value, marks } : look.value}
                zoom={zoom}
                isPinned={pinned.value.includes(name)}
                pin={() => pin(name)}
              />
            ))}
          </div>
        </section>
      ))}
    </>
  );
}

function grouping(series: Series[]): Map<string, Series[]> {
  const groups = new Map<string, Series[]>();
  for (const each of series) groups.set(each.name, [...(groups.get(each.name) ?? []), each]);
  return groups;
}

function Legend({ runs }: { runs: { id: string; label: string }[] }) {
  return (
    <ul class="legend">
      {runs.map(({ id, label }, i) => (
        <li key={id}><i class={`c${i % 8}`} /> {label}</li>
      ))}
    </ul>
  );
}

/** The lines of one metric. An evaluation's interval is its band, where it has one. */
function linesOf(runs: { id: string; label: string }[], name: string, byName: Map<string, Series[]>): Line[] {
  return runs.flatMap(({ id, label }, colour) => {
    const own = (suffix: string) => byName.get(`${name}${suffix}`)?.find(({ run }) => run === id);
    const series = own("");
    if (!series) return [];
    const low = own("_low")?.mean ?? series.min;
    const high = own("_high")?.mean ?? series.max;
    const fits = runs.length <= MOST_BANDS && low?.length === series.x.length && high?.length === series.x.length;
    return [{ label, x: series.x, y: series.mean, low: fits ? low : null, high: fits ? high : null, colour }];
  });
}
