// Small pieces that several views show.

import { useComputed, useSignal, useSignalEffect } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { type Run, mayChange, words } from "./api";
import { tailOf } from "./format";
import { ask, query } from "./router";

export const OVER = new Set(["succeeded", "failed", "cancelled"]);

/** A state with its colour; `tone`: the state whose colour it has instead of its own. */
export function State({ state, tone = state }: { state: string; tone?: string }) {
  return <span class={`state ${tone}`}>{state}</span>;
}

/** A name whose telling end stays when the rest is cut. `others`: the names beside it. */
export function Name({ name, others = [] }: { name: string; others?: string[] }) {
  const at = tailOf(name, others);
  return (
    <span class="name" title={name}>
      <span class="head">{name.slice(0, at)}</span>
      <span class="tail">{name.slice(at)}</span>
    </span>
  );
}

export function Chip({ label, children, title }: { label: string; children: ComponentChildren; title?: string }) {
  return (
    <span class="chip" title={title}>
      <span class="quiet">{label}</span> {children}
    </span>
  );
}

export function Problem({ error }: { error: unknown }) {
  return error ? <p class="problem" role="alert">{words(error)}</p> : null;
}

/** A text of the gateway, whose names of keys and commands stand between backticks. */
export function Marked({ text }: { text: string }) {
  return <>{text.split("`").map((part, i) => (i % 2 ? <code key={i}>{part}</code> : part))}</>;
}

/** A reason of the gateway, which begins small, as a sentence. */
export const Sentence = ({ text }: { text: string }) => <Marked text={`${text.charAt(0).toUpperCase()}${text.slice(1)}.`} />;

/** A button that changes something: it is off while it acts, and a refusal stands beside it. A key that only reads has none. */
export function Action({ label, about, act, sure, kind = "" }: { label: string; about?: string; act: () => Promise<unknown>; sure?: string; kind?: string }) {
  const busy = useSignal(false);
  const error = useSignal<unknown>(null);
  const click = async () => {
    if (sure && !confirm(sure)) return;
    busy.value = true;
    error.value = null;
    try {
      await act();
    } catch (failure) {
      error.value = failure;
    }
    busy.value = false;
  };
  if (!mayChange.value) return null;
  return (
    <>
      <button class={kind} aria-label={about} disabled={busy.value} onClick={click}>{label}</button>
      <Problem error={error.value} />
    </>
  );
}

export interface Loaded<T> {
  data: T | null;
  error: unknown;
  again: () => void;
}

/** Load something, again when a key changes. The answer before stays until the next one is there, unless `key` changes. */
export function useLoaded<T>(load: (signal: AbortSignal) => Promise<T>, key: string, fresh: unknown = null): Loaded<T> {
  const [state, set] = useState<{ key: string; data: T | null; error: unknown }>({ key, data: null, error: null });
  const [round, next] = useState(0);
  useEffect(() => {
    const controller = new AbortController();
    load(controller.signal).then(
      (data) => controller.signal.aborted || set({ key, data, error: null }),
      (error: unknown) => controller.signal.aborted || set((before) => ({ key, data: before.key === key ? before.data : null, error })),
    );
    return () => controller.abort();
  }, [key, fresh, round]);
  // An answer to another key is of another run: never show it under this one.
  const own = state.key === key ? state : { data: null, error: null };
  return { data: own.data, error: own.error, again: () => next((n) => n + 1) };
}

/** A choice that stands in the address. */
export function Choice({ name, label, options, fallback = "" }: { name: string; label: string; options: [string, string][]; fallback?: string }) {
  const value = query.value.get(name) ?? fallback;
  return (
    <label class="choice">
      <span class="quiet">{label}</span>
      <select value={value} onChange={(event) => ask({ [name]: event.currentTarget.value === fallback ? null : event.currentTarget.value })}>
        {options.map(([key, text]) => (
          <option key={key} value={key} selected={key === value}>{text}</option>
        ))}
      </select>
    </label>
  );
}

/** A text field of the address; typing changes it after a pause. */
export function SearchField({ name, label, placeholder }: { name: string; label: string; placeholder: string }) {
  const text = useSignal(query.peek().get(name) ?? "");
  const timer = useMemo(() => ({ id: 0 }), []);
  const own = useComputed(() => query.value.get(name) ?? "");
  // Another part of the address may change while one types: that takes no letter away.
  useSignalEffect(() => {
    if (own.value !== text.peek().trim()) text.value = own.value;
  });
  return (
    <input
      type="search"
      aria-label={label}
      placeholder={placeholder}
      value={text.value}
      onInput={(event) => {
        text.value = event.currentTarget.value;
        clearTimeout(timer.id);
        timer.id = window.setTimeout(() => ask({ [name]: text.value.trim() || null }), 200);
      }}
    />
  );
}

export function Progress({ run }: { run: Run }) {
  if (!run.max_steps) return <span class="n">{run.step ? `step ${run.step}` : "–"}</span>;
  const share = Math.min(1, run.step / run.max_steps);
  return (
    <span class="progress" title={`step ${run.step} of ${run.max_steps}`}>
      <span class="bar"><i style={{ width: `${share * 100}%` }} /></span>
      <span class="n">{run.step}/{run.max_steps}</span>
    </span>
  );
}
