// Nodes and numbers. Text only ever becomes textContent, never markup.

export function element(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

export function number(value, digits) {
  if (typeof value !== "number" || !Number.isFinite(value)) return null;
  if (digits > 0 && value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return value.toLocaleString(undefined, { maximumFractionDigits: digits });
}
