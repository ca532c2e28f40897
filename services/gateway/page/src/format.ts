// Numbers, sizes and times as people read them.

/** A number with at most `digits` decimals; a dash for none. */
export function number(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (digits > 0 && value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return value.toLocaleString(undefined, { maximumFractionDigits: digits });
}

/** A number in few characters, for axes and legends. */
export function short(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${number(value / 1e9, 1)}G`;
  if (size >= 1e6) return `${number(value / 1e6, 1)}M`;
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  return (value + 0).toLocaleString(undefined, { maximumSignificantDigits: 4 }).replace(/^-0$/, "0");
}

/** A place on an axis. */
export const tick = (value: number) => (Math.abs(value) >= 1e4 && Math.abs(value) < 1e6 ? `${number(value / 1e3, 1)}k` : short(value));

/** A share as a percentage. */
export const percent = (share: number | null | undefined, digits = 1) => (share === null || share === undefined ? "–" : `${number(100 * share, digits)} %`);

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value: number | null | undefined): string {
  if (!value) return "–";
  const power = Math.min(4, Math.floor(Math.log(value) / Math.log(1024)));
  return `${number(value / 1024 ** power, power > 2 ? 1 : 0)} ${UNITS[power]}`;
}

/** A length of time with its two largest units. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${seconds.toFixed(0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** How long since a moment in Unix seconds. */
export function ago(moment: number): string {
  const age = Math.max(0, Date.now() / 1000 - moment);
  if (age < 60) return "just now";
  if (age < 5400) return `${(age / 60).toFixed(0)} min ago`;
  return age < 172800 ? `${(age / 3600).toFixed(0)} h ago` : `${(age / 86400).toFixed(0)} d ago`;
}

export const moment = (seconds: number) => new Date(seconds * 1000).toLocaleString();
/** The time of a moment of today; of another day with its date. */
export function clock(seconds: number): string {
  const at = new Date(seconds * 1000);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString(undefined, { month: "short", day: "numeric" })} `;
  return `${day}${at.toLocaleTimeString()}`;
}

/** Where to cut a name so that its telling end stays: behind the longest beginning that it shares with another name. */
export function tailOf(name: string, others: string[]): number {
  let shared = 0;
  for (const other of others) {
    if (other === name) continue;
    let same = 0;
    while (same < name.length && name[same] === other[same]) same++;
    shared = Math.max(shared, same);
  }
  // Part of a word says nothing: go back to the beginning of one, until a few letters stay.
  let at = Math.min(shared, name.length - 6);
  while (at > 0 && !/[-_ ./]/.test(name[at - 1]!)) at--;
  if (at >= name.length - 28) return Math.max(at, 0);
  at = name.length - 28;
  const word = name.slice(at).search(/[-_ ./]/); // a long end begins with a word, too
  return word < 0 ? at : at + word + 1;
}
