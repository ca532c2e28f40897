// A run's config, and what it changes against another.

import { useSignal } from "@preact/signals";

export type Flat = Map<string, unknown>;

/** The leaves of a config by their key paths. A list is a leaf. */
export function flat(config: unknown, prefix = "", into: Flat = new Map()): Flat {
  if (config !== null && typeof config === "object" && !Array.isArray(config) && Object.keys(config).length)
    for (const [key, value] of Object.entries(config)) flat(value, prefix ? `${prefix}.${key}` : key, into);
  else if (prefix) into.set(prefix, config);
  return into;
}

/** A value as a config file has it: 3e-6, and not 0.000003. */
export function written(value: unknown): string {
  if (value === undefined) return "–";
  if (typeof value === "number" && value !== 0 && Math.abs(value) < 1e-3) return value.toExponential();
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The keys whose values differ from those that a recipe sets, without the ones that every submission names. */
export function changes(config: unknown, recipe: unknown): [key: string, before: unknown, after: unknown][] {
  const after = flat(config);
  const found = [...flat(recipe)]
    .filter(([key, value]) => !/^(model\.path|data\.dataset|evaluation\.dataset)$/.test(key) && !same(after.get(key), value))
    .map(([key, value]): [string, unknown, unknown] => {
      // A section that is switched off is one change, and not one of each of its keys.
      const section = key.split(".").map((_, i, parts) => parts.slice(0, i + 1).join(".")).find((path) => after.get(path) === null);
      return section ? [section, "a section", null] : [key, value, after.get(key)];
    });
  return [...new Map(found.map((change) => [change[0], change])).values()];
}

/** Whether two values mean the same. Objects in a list may have more keys in the validated config, which has defaults. */
export function same(full: unknown, value: unknown): boolean {
  if (typeof full === "number" && typeof value === "string") return full === Number(value);
  if (Array.isArray(full) && Array.isArray(value)) return full.length === value.length && value.every((each, i) => same(full[i], each));
  if (full && value && typeof full === "object" && typeof value === "object")
    return Object.entries(value).every(([key, each]) => same((full as Record<string, unknown>)[key], each));
  return full === value;
}

/** Configs side by side, one row a key. */
export function ConfigTable({ configs, isDiff = false }: { configs: { label: string; config: unknown }[]; isDiff?: boolean }) {
  const wanted = useSignal("");
  const flats = configs.map(({ config }) => flat(config));
  const keys = [...new Set(flats.flatMap((each) => [...each.keys()]))].sort();
  const rows = keys
    .map((key) => ({ key, values: flats.map((each) => written(each.get(key))) }))
    .filter(({ values }) => !isDiff || new Set(values).size > 1)
    .filter(({ key, values }) => `${key} ${values.join(" ")}`.toLowerCase().includes(wanted.value.toLowerCase()));
  return (
    <>
      {!isDiff && <input type="search" aria-label="Search the config" placeholder="Search keys and values" onInput={(event) => (wanted.value = event.currentTarget.value)} />}
      <div class="scroll">
        <table class="config">
          <thead><tr><th>Key</th>{configs.map(({ label }) => <th key={label}>{label}</th>)}</tr></thead>
          <tbody>
            {rows.map(({ key, values }) => (
              <tr key={key}><td><code>{key}</code></td>{values.map((value, i) => <td key={i}><code>{value}</code></td>)}</tr>
            ))}
          </tbody>
        </table>
      </div>
      {!rows.length && <p class="quiet empty">{isDiff ? "The configs are equal." : "No key matches."}</p>}
    </>
  );
}
