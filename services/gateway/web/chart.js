// One metric by step, drawn by uPlot (vendor/), which also gives the cursor, the legend and zooming.

const HEIGHT = 260; // CSS pixels
const dark = matchMedia("(prefers-color-scheme: dark)");

let plot = null;
let drawn = null; // what `plot` was made for, so that new points only move its data

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function short(value) {
  if (value == null) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
  return (value + 0).toLocaleString(undefined, { maximumSignificantDigits: 4 }).replace(/^-0$/, "0");
}

// [[step, value], …] of the metric, and of the held-out measure, on one list of steps.
function joined(points, dots) {
  const steps = [...new Set([...points, ...dots].map(([step]) => step))].sort((a, b) => a - b);
  const values = new Map(points), held = new Map(dots);
  return [steps, steps.map((s) => values.get(s)), steps.map((s) => held.get(s))];
}

// The newest value, which the legend shows where no cursor picks another.
function newest(plot, series) {
  return plot.data[series]?.findLast((value) => value != null);
}

function options(box, name, dotsName) {
  const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  const picked = (plot, value, series, index) => (index == null ? newest(plot, series) : value);
  const marker = (_, series) => colour(series === 1 ? "accent" : "second");
  return {
    // Of itself uPlot leaves out the mark of a series that is drawn as dots alone.
    legend: { markers: { width: 2, stroke: marker, fill: marker } },
    width: box.clientWidth,
    height: HEIGHT,
    scales: { x: { time: false } },
    axes: [
      { ...axis, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5] },
      { ...axis, size: 64, values: (_, ticks) => ticks.map(short) },
    ],
    series: [
      { label: "step", value: (...at) => picked(...at) ?? "" },
      { label: name, stroke: colour("accent"), width: 2, spanGaps: true, value: (...at) => short(picked(...at)) },
      {
        label: dotsName,
        show: Boolean(dotsName),
        stroke: colour("second"),
        width: 0,
        points: { show: true, size: 11, width: 1, fill: colour("second"), stroke: colour("card") },
        value: (...at) => short(picked(...at)),
      },
    ],
  };
}

// Draws `points` of the metric `name`, and `dots` named `dotsName`. Nothing to draw clears it.
export function draw(box, name, points, dots, dotsName) {
  if (!points.length && !dots.length) {
    plot?.destroy();
    plot = drawn = null;
    return;
  }
  const shown = dots.length ? dotsName : "";
  const wanted = [name, shown, dark.matches].join();
  if (wanted !== drawn) {
    plot?.destroy();
    plot = new uPlot(options(box, name, shown), joined(points, dots), box);
    drawn = wanted;
  } else plot.setData(joined(points, dots));
  fit(box);
}

export function fit(box) {
  if (plot && plot.width !== box.clientWidth) plot.setSize({ width: box.clientWidth, height: HEIGHT });
}
