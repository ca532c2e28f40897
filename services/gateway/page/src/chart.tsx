// One chart: lines with their bands of least and largest values, drawn by uPlot.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { duration, short, tick } from "./format";
import { type Axis, aligned, smoothed } from "./series";

export interface Line {
  label: string;
  x: number[];
  y: (number | null)[];
  low?: (number | null)[] | null;
  high?: (number | null)[] | null;
  colour: number;
}

export interface Look {
  axis: Axis;
  isLog: boolean;
  smoothing: number;
  from: number | null;
  to: number | null;
  marks?: number[];
}

interface Props {
  title: string;
  lines: Line[];
  look: Look;
  zoom: (from: number | null, to: number | null) => void;
  isPinned?: boolean;
  pin?: () => void;
}

const HEIGHT = 168; // CSS pixels
const dark = matchMedia("(prefers-color-scheme: dark)");

const token = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The data of uPlot: for each line its raw values, its smoothed ones, and the two ends of its band. */
function columns(lines: Line[], { isLog, smoothing }: Look): uPlot.AlignedData {
  const positive = (values: (number | null)[]) => (isLog ? values.map((v) => (v !== null && v > 0 ? v : null)) : values);
  return aligned(
    lines.map(({ x, y, low, high }) => {
      const none = () => new Array<null>(x.length).fill(null);
      const raw = positive(y);
      return { x, columns: [smoothing ? raw : none(), smoothing ? smoothed(raw, smoothing) : raw, positive(low ?? none()), positive(high ?? none())] };
    }),
  ) as uPlot.AlignedData;
}

const EACH = 4; // columns of a line

function options(box: HTMLElement, props: () => Props, say: (index: number | null) => void): uPlot.Options {
  const { lines, look } = props();
  const axis: uPlot.Axis = { stroke: token("quiet"), grid: { stroke: token("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const series = lines.flatMap(({ label, colour }): uPlot.Series[] => {
    const stroke = token(`c${colour % 8}`);
    const line = { label, stroke, spanGaps: true };
    const dots = { points: { show: lines.every(({ x }) => x.length < 60), size: 4, fill: stroke } };
    const edge = { label: "", stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
    return [{ ...line, width: 1, alpha: 0.3, points: { show: false } }, { ...line, width: 1.5, ...dots }, edge, edge];
  });
  return {
    width: box.clientWidth || 300,
    height: HEIGHT,
    padding: [8, 14, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: "charts" },
      drag: { x: true, y: false, setScale: false },
      points: { size: 6 },
      bind: { dblclick: () => () => (props().zoom(null, null), null) },
    },
    scales: {
      x: { time: false, range: (_, min, max) => [props().look.from ?? min, props().look.to ?? (max > min ? max : min + 1)] },
      y: look.isLog ? { distr: 3 } : { range: heights },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 26, space: 60, values: (_, ticks) => ticks.map((at) => (look.axis === "time" ? duration(at) : tick(at))) },
      { ...axis, size: 50, space: 32, values: (_, ticks) => ticks.map((at) => (at === null ? "" : tick(at))) },
    ],
    series: [{}, ...series],
    bands: lines.map(({ colour }, i) => ({ series: [i * EACH + 4, i * EACH + 3], fill: `${token(`c${colour % 8}`)}26` })),
    hooks: {
      setCursor: [(plot) => say(plot.cursor.idx ?? null)],
      setSelect: [
        (plot) => {
          if (plot.select.width < 4) return;
          props().zoom(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x"));
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
      drawClear: [(plot) => drawMarks(plot, props().look.marks ?? [])],
    },
  };
}

/** The heights that a chart shows. One value alone stands in their middle, and zero at their foot. */
function heights(_: uPlot, low: number | null, high: number | null): uPlot.Range.MinMax {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) / 10, low + Math.abs(low) / 10];
  return uPlot.rangeNum(low, high, 0.1, true);
}

/** Thin lines where the run kept a checkpoint. */
function drawMarks(plot: uPlot, marks: number[]): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = token("line");
  ctx.setLineDash([3, 3]);
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

export function Chart(props: Props) {
  const { title, lines, look, isPinned, pin } = props;
  const box = useRef<HTMLDivElement>(null);
  const value = useRef<HTMLOutputElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;

  // What a plot is made for; everything else only moves its data.
  const made = [lines.map(({ label, colour }) => `${label} ${colour}`).join("\n"), look.isLog, look.axis].join();
  useEffect(() => {
    const element = box.current!;
    const make = () => {
      plot.current?.destroy();
      const { lines, look } = latest.current;
      plot.current = new uPlot(options(element, () => latest.current, say), columns(lines, look), element);
      say(null);
    };
    const say = (index: number | null) => {
      if (value.current) value.current.textContent = reading(latest.current, plot.current, index);
    };
    // A chart out of sight costs nothing until it is scrolled to.
    const seen = new IntersectionObserver(([entry]) => entry?.isIntersecting && !plot.current && make(), { rootMargin: "300px" });
    seen.observe(element);
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    sized.observe(element);
    const themed = () => plot.current && make();
    dark.addEventListener("change", themed);
    return () => {
      seen.disconnect();
      sized.disconnect();
      dark.removeEventListener("change", themed);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [made]);
  useEffect(() => {
    plot.current?.setData(columns(lines, look));
    if (value.current && plot.current?.cursor.idx == null) value.current.textContent = reading(props, plot.current, null);
  });

  const newest = lines.map(({ y }) => short(y.findLast((v) => v !== null))).join(", ");
  return (
    <figure class="chart">
      <figcaption>
        <span class="title" title={title}>{title}</span>
        <output ref={value} class="n">{newest}</output>
        {pin && (
          <button class="icon" aria-pressed={isPinned} aria-label={`${isPinned ? "Unpin" : "Pin"} ${title}`} onClick={pin}>
            {isPinned ? "★" : "☆"}
          </button>
        )}
      </figcaption>
      <div ref={box} class="plot" role="img" aria-label={`${title}: newest ${newest}`} />
    </figure>
  );
}

/** The values at the cursor, or the newest ones. */
function reading({ lines, look }: Props, plot: uPlot | null, index: number | null): string {
  if (index === null || !plot) return lines.length > 1 ? "" : short(lines[0]?.y.findLast((value) => value !== null));
  const place = plot.data[0][index];
  const at = look.axis === "time" ? duration(place) : short(place);
  const there = lines.map(({ label }, i) => ({ label, value: plot.data[i * EACH + 2]?.[index] })).filter((line): line is { label: string; value: number } => line.value != null);
  const values = there.map(({ value }) => value);
  if (values.length > 3 && plot.over.matches(":hover")) {
    const height = plot.posToVal(plot.cursor.top ?? 0, "y");
    const near = there.reduce((best, line) => (Math.abs(line.value - height) < Math.abs(best.value - height) ? line : best));
    return `${at}: ${near.label} ${short(near.value)}`;
  }
  if (values.length > 3) return `${at}: ${short(Math.min(...values))} to ${short(Math.max(...values))}`;
  return `${at}: ${values.map((value) => short(value)).join(" · ") || "–"}`;
}
