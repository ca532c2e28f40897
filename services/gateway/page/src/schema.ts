// The keys of the run config, read from its JSON Schema: what a form needs to know of each.

import type { RunRecord } from "./api";
import { same } from "./config";

interface Schema {
  $ref?: string;
  $defs?: Record<string, Schema>;
  type?: string;
  const?: unknown;
  enum?: unknown[];
  default?: unknown;
  description?: string;
  properties?: Record<string, Schema>;
  oneOf?: Schema[];
  anyOf?: Schema[];
}

export interface Key {
  key: string;
  type: "number" | "text" | "boolean" | "choice" | "json";
  choices: string[];
  isNullable: boolean;
  /** What the config has without the key; undefined if forms of its section differ in that. */
  fallback: unknown;
  description: string;
}

export interface Keys {
  leaves: Map<string, Key>;
  /** The defaults of sections that a config may leave out, by path. */
  sections: Map<string, unknown>;
}

const DEEPEST = 7;

/** All leaf keys of configs of a kind (`rl` or `sft`), by their paths. A list is a leaf. */
export function keysOf(schema: unknown, kind: string): Keys {
  const root = schema as Schema;
  const defs = root.$defs ?? {};
  const found = new Map<string, Key>();
  const sections = new Map<string, unknown>();
  const resolve = (part: Schema): Schema => {
    const target = part.$ref && defs[part.$ref.split("/").at(-1)!];
    return target ? { ...target, ...(part.description ? { description: part.description } : {}), ...("default" in part ? { default: part.default } : {}) } : part;
  };
  const walk = (part: Schema, path: string, depth: number, isNullable: boolean): void => {
    const schema = resolve(part);
    if (path && "default" in schema && !sections.has(path)) sections.set(path, schema.default);
    const forms = (schema.oneOf ?? schema.anyOf ?? []).map(resolve);
    const real = forms.filter(({ type }) => type !== "null");
    if (forms.length && real.some(({ properties }) => properties) && depth < DEEPEST) {
      // A section that may be null can be switched off as a whole.
      if (path && real.length < forms.length && !found.has(path))
        found.set(path, { key: path, type: "choice", choices: ["null"], isNullable: true, fallback: undefined, description: `null: none. ${schema.description ?? ""}` });
      for (const form of real) walk(withDefault(form, schema.default), path, depth, isNullable || real.length < forms.length);
      return;
    }
    if (schema.properties && depth < DEEPEST) {
      // What a section has without being named goes before what its keys have by themselves.
      const whole = schema.default && typeof schema.default === "object" ? (schema.default as Record<string, unknown>) : {};
      for (const [name, child] of Object.entries(schema.properties)) walk(name in whole ? withDefault(child, whole[name]) : child, path ? `${path}.${name}` : name, depth + 1, false);
      return;
    }
    note(found, path, schema, real, isNullable || real.length < forms.length);
  };
  const forms = (root.oneOf ?? [root]).map(resolve);
  const wanted = forms.find((form) => form.properties?.["type"]?.const === kind) ?? forms[0];
  if (wanted) walk(wanted, "", 0, false);
  found.delete("type");
  return { leaves: found, sections };
}

const withDefault = (schema: Schema, value: unknown): Schema => (value === undefined || value === null ? schema : { ...schema, default: value });

/** Note a leaf; a `type` that several forms of a section have becomes the choice between them. */
function note(found: Map<string, Key>, path: string, schema: Schema, forms: Schema[], isNullable: boolean): void {
  const choices = [schema, ...forms].flatMap((form) => ("const" in form ? [form.const] : (form.enum ?? []))).map(String);
  const known = found.get(path);
  if (known) {
    known.choices = [...new Set([...known.choices, ...choices])];
    if (JSON.stringify(known.fallback) !== JSON.stringify(schema.default)) known.fallback = undefined;
    return;
  }
  const types = new Set([schema.type, ...forms.map(({ type }) => type)].filter(Boolean));
  let type: Key["type"] = "json";
  if (choices.length && (types.size < 2 || types.has("string"))) type = "choice";
  else if (types.has("number") || types.has("integer")) type = "number";
  else if (types.has("boolean")) type = "boolean";
  else if (types.has("string")) type = "text";
  found.set(path, { key: path, type, choices, isNullable, fallback: schema.default, description: schema.description ?? "" });
}

/** Whether a section that the key belongs to is null. */
export const isOff = (key: string, values: Map<string, string>) => [...values].some(([section, text]) => text === "null" && key.startsWith(`${section}.`));

/** What a text means for a key. A text that is not of the key's type stays one: the gateway says what is wrong with it. */
export function parsed(text: string, key: Key | undefined): unknown {
  if (key && (key.type === "text" || key.type === "choice")) return text === "null" && key.isNullable ? null : text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** The keys of a config that a recipe and the defaults do not say. */
export function minimal(config: Record<string, unknown>, recipe: unknown, keys: Keys, prefix = ""): Record<string, unknown> {
  const said = recipe && typeof recipe === "object" && !Array.isArray(recipe) ? (recipe as Record<string, unknown>) : {};
  const left: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(config)) {
    const path = prefix ? `${prefix}.${name}` : name;
    if (value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) {
      const inner = minimal(value as Record<string, unknown>, said[name], keys, path);
      if (Object.keys(inner).length) left[name] = inner;
      continue;
    }
    const fallback = name in said ? said[name] : (keys.leaves.get(path)?.fallback ?? keys.sections.get(path));
    if (!same(value, fallback === undefined && keys.sections.has(path) ? null : fallback)) left[name] = value;
  }
  return left;
}

/** Set a key of a config, given as its path; sections are made as needed. */
export function withKey(config: Record<string, unknown>, path: string, value: unknown): Record<string, unknown> {
  const [name, ...rest] = path.split(".");
  const inner = config[name!];
  const section = inner && typeof inner === "object" && !Array.isArray(inner) ? (inner as Record<string, unknown>) : {};
  return { ...config, [name!]: rest.length ? withKey(section, rest.join("."), value) : value };
}

/** A run's config with the names of its datasets instead of their ids. */
export function named({ config, dataset_names }: RunRecord): Record<string, unknown> {
  const names = Object.entries(dataset_names ?? {}).filter(([key]) => !key.includes("["));
  return names.reduce((config, [key, name]) => withKey(config, key, name), config as Record<string, unknown>);
}

/** A config as YAML. A text is quoted when YAML would read it as something else. */
export function yaml(value: unknown, indent = ""): string {
  if (Array.isArray(value)) return value.length ? `\n${value.map((each) => `${indent}- ${yaml(each, `${indent}  `).trimStart()}`).join("\n")}` : "[]";
  if (value && typeof value === "object") {
    const lines = Object.entries(value).map(([key, each]) => {
      const text = yaml(each, Array.isArray(each) ? indent : `${indent}  `);
      return `${indent}${key}:${text.startsWith("\n") ? "" : " "}${text}`;
    });
    return lines.length ? `\n${lines.join("\n")}` : "{}";
  }
  if (typeof value === "string") return /^[A-Za-z/][\w/.@-]*$/.test(value) && !/^(true|false|null|yes|no|on|off|y|n)$/i.test(value) ? value : JSON.stringify(value);
  return JSON.stringify(value);
}
