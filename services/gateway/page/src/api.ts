// Requests to the gateway. Their types come from its OpenAPI document, so a changed API breaks `tsc`.

import { signal } from "@preact/signals";
import type { components, paths } from "./openapi";

export type Schemas = components["schemas"];
export type Run = Schemas["RunSummary"];
export type RunRecord = Schemas["RunRecord"];

type Method = "get" | "post" | "patch" | "delete";
type Operation<P extends keyof paths, M extends Method> = paths[P][M];
type Content<R> = R extends { content: { "application/json": infer A } } ? A : never;
type Responses<O> = O extends { responses: infer R } ? R : never;
type Good = 200 | 201 | 202;
type Answer<O> = { [S in keyof Responses<O>]: S extends Good ? Content<Responses<O>[S]> : never }[keyof Responses<O>];
type Parameters<O> = O extends { parameters: infer P } ? P : never;
type Part<O, K extends string> = K extends keyof Parameters<O> ? Parameters<O>[K] : undefined;
type Body<O> = O extends { requestBody?: { content: { "application/json": infer B } } } ? B : undefined;

interface Asked<O> {
  path?: Part<O, "path">;
  query?: Part<O, "query">;
  body?: Body<O>;
  signal?: AbortSignal;
}

/** What the gateway refuses, in its words. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly problems: { path: string; message: string }[],
  ) {
    super(message);
  }
}

/** The gateway asks for a key: its form is shown instead of the views. */
export const needsKey = signal(false);
/** Whether the key of this session may change things, and not only read them. */
export const mayChange = signal(true);
/** The gateway does not answer. */
export const isAway = signal(false);

type Values = Record<string, unknown>;

/** The address of a route with its parameters filled in. */
export function address(route: string, path: Values = {}, query: Values = {}): string {
  const filled = route.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(path[name])));
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    for (const each of Array.isArray(value) ? value : [value])
      if (each !== undefined && each !== null && each !== "") pairs.append(name, String(each));
  return pairs.size ? `${filled}?${pairs}` : filled;
}

/** Send a request; raise a Refusal for every answer that is none of success. */
export async function send(url: string, options: RequestInit = {}): Promise<unknown> {
  let response: Response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (!(error instanceof DOMException)) isAway.value = true;
    throw error;
  }
  isAway.value = false;
  if (response.ok) return response.status === 204 ? null : response.json();
  throw await refusalOf(response, url);
}

/** The refusal that an answer is; a 401 shows the form for the key. */
export async function refusalOf(response: Response, url: string): Promise<Refusal> {
  const problem = (await response.json().catch(() => ({}))) as Partial<Refusal> & { detail?: string; error?: { message: string } };
  if (response.status === 401 && url !== "/v1/session") needsKey.value = true;
  return new Refusal(response.status, problem.detail ?? problem.error?.message ?? response.statusText, problem.problems ?? []);
}

function call<P extends keyof paths, M extends Method>(method: M, route: P, asked: Asked<Operation<P, M>>) {
  const { path, query, body, signal } = asked;
  const options: RequestInit = { method: method.toUpperCase(), signal: signal ?? null };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "content-type": "application/json" };
  }
  return send(address(route, path as Values, query as Values), options) as Promise<Answer<Operation<P, M>>>;
}

type With<M extends Method> = { [P in keyof paths]: paths[P][M] extends { responses: unknown } ? P : never }[keyof paths];

export const get = <P extends With<"get">>(route: P, asked: Asked<Operation<P, "get">> = {}) => call("get", route, asked);
export const post = <P extends With<"post">>(route: P, asked: Asked<Operation<P, "post">> = {}) => call("post", route, asked);
export const patch = <P extends With<"patch">>(route: P, asked: Asked<Operation<P, "patch">> = {}) => call("patch", route, asked);
export const remove = <P extends With<"delete">>(route: P, asked: Asked<Operation<P, "delete">> = {}) =>
  call("delete", route, asked);

/** The words of what went wrong, for people. */
export function words(error: unknown): string {
  if (error instanceof Refusal) return error.message;
  if (error instanceof TypeError) return "The gateway does not answer.";
  return String(error);
}
