// Nodes and numbers. Text only ever becomes textContent, never markup.

export const $ = (id) => document.getElementById(id);

// A run or a chain in one of these states is over.
export const OVER = new Set(["succeeded", "failed", "cancelled"]);

export function element(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// A row of a table. A cell is its text, or its text and its class.
export function tableRow(...cells) {
  const row = element("tr");
  row.append(...cells.map((cell) => (Array.isArray(cell) ? element("td", cell[0], { class: cell[1] }) : element("td", cell))));
  return row;
}

// An entry's or a title's state, as a badge.
export function badge(state) {
  return element("span", state, { class: `badge ${state}` });
}

export function number(value, digits) {
  if (typeof value !== "number" || !Number.isFinite(value)) return null;
  if (digits > 0 && value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return value.toLocaleString(undefined, { maximumFractionDigits: digits });
}

// Bytes in the unit that fits.
export function size(bytes) {
  if (!bytes) return null;
  const power = Math.min(4, Math.floor(Math.log(bytes) / Math.log(1024)));
  return `${number(bytes / 1024 ** power, power > 2 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

// How long since a moment in Unix seconds.
export function ago(moment) {
  const age = Math.max(0, Date.now() / 1000 - moment);
  if (age < 90) return `${age.toFixed(0)} s ago`;
  if (age < 5400) return `${(age / 60).toFixed(0)} min ago`;
  return age < 172800 ? `${(age / 3600).toFixed(0)} h ago` : `${(age / 86400).toFixed(0)} d ago`;
}
