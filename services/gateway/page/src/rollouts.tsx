// The answers that a run was trained on: filtered, by group, and token by token.

import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { type Schemas, get } from "./api";
import { Answers, Reasons } from "./answers";
import { moment, number } from "./format";
import { Choice, Problem, SearchField, Sentence, useLoaded } from "./parts";
import { ask, query } from "./router";

type Summary = Schemas["RolloutSummary"];
type Group = Schemas["RolloutGroup"];
type Sample = Schemas["RolloutSample"];
type Status = Schemas["RolloutStatus"];

const STATUSES: Status[] = ["correct", "wrong", "partial", "scored", "no_answer", "unparsable", "timeout", "error", "truncated", "untrained"];
const NUMBERS = [[["step", "Step"]], [["row", "Row"]], [["min_reward", "Reward from"], ["max_reward", "to"]], [["min_tokens", "Tokens from"], ["max_tokens", "to"]]] as const;

const asked = () => Object.fromEntries([...NUMBERS.flat().map(([name]) => name), "status", "text"].map((name) => [name, query.value.get(name)]));

export function Rollouts({ run, state, step, isOver }: { run: string; state: string; step: number; isOver: boolean }) {
  const group = query.value.get("group");
  if (group) return <OneGroup key={group} run={run} at={group} />;
  return <List run={run} state={state} step={step} isOver={isOver} />;
}

function List({ run, state, step, isOver }: { run: string; state: string; step: number; isOver: boolean }) {
  const wanted = asked();
  const isFiltered = Object.values(wanted).some(Boolean);
  const key = `${run} ${JSON.stringify(wanted)}`;
  const cursors = useSignal<{ key: string; all: string[] }>({ key, all: [] });
  const all = cursors.value.key === key ? cursors.value.all : [];
  // A list that is read does not move under the reader: newer steps come when asked for.
  const seen = useSignal(step);
  const { data, error } = useLoaded(
    async (signal) => {
      const pages = [];
      for (const cursor of [null, ...all])
        pages.push(await get("/v1/runs/{run}/rollouts", { path: { run }, query: { ...wanted, limit: 60, cursor } as never, signal }));
      return { rollouts: pages.flatMap(({ rollouts }) => rollouts), next: pages.at(-1)!.next, damaged: pages[0]!.damaged, why: pages[0]!.none_because };
    },
    key,
    `${all.join()} ${seen.value} ${isOver}`,
  );
  // A run that keeps no rollouts, or has trained nothing yet, still has the answers that were judged last.
  if (data && !data.rollouts.length && !isFiltered && !data.damaged.length) return <Answers run={run} state={state} step={step} why={data.why} />;
  return (
    <>
      <Filters />
      <Problem error={error} />
      {data?.damaged.length ? <p class="problem">These files cannot be read: {data.damaged.join(", ")}</p> : null}
      {step > seen.value && <button class="more" onClick={() => (seen.value = step)}>Show step {step}, the newest</button>}
      {!data && !error && <p class="quiet empty">Loading…</p>}
      {data && !data.rollouts.length && <p class="quiet empty">{data.next ? "Nothing found so far." : <Sentence text={data.why ?? "no answer matches"} />}</p>}
      <ol class="answers">{byGroup(data?.rollouts ?? []).map((members) => <Together key={`${members[0]!.step} ${members[0]!.group}`} members={members} />)}</ol>
      {data?.next && <button class="more" onClick={() => (cursors.value = { key, all: [...all, data.next!] })}>{data.rollouts.length ? "More" : "Search on"}</button>}
    </>
  );
}

function Filters() {
  return (
    <div class="toolbar">
      <SearchField name="text" label="Text of the answer" placeholder="Text of the answer" />
      <Choice name="status" label="Status" options={[["", "any"], ...STATUSES.map((each): [string, string] => [each, each.replace("_", " ")])]} />
      {NUMBERS.map((fields) => (
        <span key={fields[0][0]} class="choice">
          {fields.map(([name, label]) => (
            <label key={name} class="choice">
              <span class="quiet">{label}</span>
              <input type="number" step="any" value={query.value.get(name) ?? ""} onChange={(event) => ask({ [name]: event.currentTarget.value || null })} />
            </label>
          ))}
        </span>
      ))}
    </div>
  );
}

function byGroup(rollouts: Summary[]): Summary[][] {
  const groups = new Map<string, Summary[]>();
  for (const each of rollouts) {
    const key = `${each.step} ${each.group}`;
    groups.set(key, [...(groups.get(key) ?? []), each]);
  }
  return [...groups.values()];
}

function Together({ members }: { members: Summary[] }) {
  const first = members[0]!;
  const to = new URLSearchParams(query.value);
  to.set("group", `${first.step}/${first.group}`);
  return (
    <li>
      <p class="facts">
        <a href={`?${to}`}><b>step {first.step}, group {first.group}</b></a>
        <span>{first.own != null ? `a client's prompt ${first.own}` : `${first.dataset ? `${first.dataset}, ` : ""}row ${first.row}`}</span>
        <span>{members.length === 1 ? "1 answer" : `${members.length} answers`}</span>
      </p>
      <pre class="quiet">{first.prompt}</pre>
      <div class="side">
        {members.map((each) => (
          <div key={each.sample}>
            <p class="facts"><b>{number(each.reward)}</b> <span>{each.status}</span> <span>advantage {number(each.advantage)}</span> <span>{each.length} tokens</span>{each.finish_reason !== "stop" && <span>{each.finish_reason}</span>}{!each.trained && <span>not in the loss</span>}</p>
            <pre>{each.completion}</pre>
          </div>
        ))}
      </div>
    </li>
  );
}

const COLOURS: [string, string][] = [["gap", "log-probability gap"], ["advantage", "advantage"], ["entropy", "entropy"], ["surprise", "surprise"], ["version", "version"], ["none", "nothing"]];
const MEANINGS: Record<string, string> = {
  gap: "The learner's log-probability minus the sampler's: orange, the learner finds the token less likely; blue, more likely.",
  advantage: "What the token's answer was worth against its group: blue is pushed up, orange down.",
  entropy: "How open the choice of the token was: the stronger, the more open.",
  surprise: "How unlikely the token was when it was sampled.",
  version: "Which policy version sampled the token: the oldest is faint.",
  none: "",
};

function OneGroup({ run, at }: { run: string; at: string }) {
  const [step = "", group = ""] = at.split("/");
  const { data, error } = useLoaded(
    (signal) => get("/v1/runs/{run}/rollouts/{step}/{group}", { path: { run, step: Number(step), group: Number(group) }, signal }),
    `${run} ${at}`,
  );
  const back = new URLSearchParams(query.value);
  back.delete("group");
  back.delete("sample");
  return (
    <>
      <div class="toolbar">
        <a href={`?${back}`}>← Answers</a>
        <h2>Step {step}, group {group}</h2>
        <Choice name="colour" label="Tokens by" options={COLOURS} fallback="gap" />
        <a href={`/v1/runs/${encodeURIComponent(run)}/rollouts/${encodeURIComponent(step)}`} download>Parquet of the step</a>
      </div>
      <Problem error={error} />
      {!data && !error && <p class="quiet empty">Loading…</p>}
      {data && <Whole group={data} />}
    </>
  );
}

function Whole({ group }: { group: Group }) {
  const by = query.value.get("colour") ?? "gap";
  const scale = scaleOf(group.samples, by);
  return (
    <>
      <p class="quiet">{MEANINGS[by]}</p>
      {group.damaged.length > 0 && <p class="problem">These files cannot be read: {group.damaged.join(", ")}</p>}
      <p class="facts"><span>{group.dataset ? `${group.dataset}, ` : ""}row {group.row}</span> <span>sampled by {group.worker}, {moment(group.generated_at)}</span>{group.reference && <span>reference <code>{group.reference}</code></span>}</p>
      <pre class="wrap quiet">{group.prompt}</pre>
      <ol class="answers wide">
        {group.samples.map((sample) => <Coloured key={sample.sample} sample={sample} by={by} scale={scale} />)}
      </ol>
    </>
  );
}

function Coloured({ sample, by, scale }: { sample: Sample; by: string; scale: Scale }) {
  const said = useSignal("");
  const values = valuesOf(sample, by);
  const branches = new Set(sample.branches.map(({ start }) => start));
  const pointed = useRef<Element | null>(null);
  const point = (token: Element | null | undefined) => {
    const at = Number((token as HTMLElement | null)?.dataset["at"]);
    if (!token || !Number.isInteger(at)) return;
    pointed.current?.classList.remove("pointed");
    pointed.current = token;
    token.classList.add("pointed");
    said.value = facts(sample, at);
  };
  const step = (event: KeyboardEvent) => {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    event.preventDefault();
    const { current } = pointed;
    point(!current ? (event.currentTarget as Element).firstElementChild : event.key === "ArrowRight" ? current.nextElementSibling : current.previousElementSibling);
  };
  return (
    <li>
      <p class="facts">
        <b>reward {number(sample.reward)}</b> <span>{sample.status}</span> <span>advantage {number(sample.advantage)}</span>
        <span>{sample.length} tokens, {sample.finish_reason}</span> {sample.turns != null && <span>{sample.turns} turns</span>} {!sample.trained && <span>not in the loss</span>}
        {Object.keys(sample.components).length > 1 && Object.entries(sample.components).map(([name, value]) => <span key={name}>{name} {number(value)}</span>)}
      </p>
      {sample.tokens ? (
        <>
          <pre class="tokens" tabIndex={0} aria-label={`Answer ${sample.sample}`} onMouseOver={(event) => point(event.target as Element)} onKeyDown={step}>
            {sample.tokens.map((text, i) => (
              <span key={i} data-at={i} class={`${branches.has(i) ? "branch " : ""}${classOf(values[i] ?? null, scale) ?? ""}` || undefined}>{text}</span>
            ))}
          </pre>
          <p class="facts n tokenfacts">{said.value || <span>Point at a token for its numbers, or walk with the arrow keys.</span>}</p>
        </>
      ) : (
        <pre>{sample.completion}</pre>
      )}
      <Reasons reasons={sample.reasons} />
    </li>
  );
}

/** The number that colours each token; null leaves it plain. */
function valuesOf(sample: Sample, by: string): (number | null)[] {
  const { sampler_logprobs: sampler, learner_logprobs: learner } = sample;
  if (by === "gap") return sampler.map((value, i) => (value == null || learner?.[i] == null ? null : learner[i]! - value));
  if (by === "advantage") return sampler.map((value, i) => (sample.advantages ? (sample.advantages[i] ?? null) : value == null || !sample.trained ? null : sample.advantage));
  if (by === "entropy") return sampler.map((_, i) => sample.entropy?.[i] ?? null);
  if (by === "surprise") return sampler.map((value) => (value == null ? null : -value));
  if (by === "version") return sampler.map((_, i) => versionOf(sample, i));
  return sampler.map(() => null);
}

const versionOf = (sample: Sample, at: number) => sample.versions.find(({ start, end }) => start <= at && at < end)?.version ?? null;

interface Scale {
  low: number;
  high: number;
  isSigned: boolean;
}

const STEPS = 5;

/** One scale for all answers of a group, so that their colours compare. Its end is the 99th percentile: one odd token would fade all others. */
function scaleOf(samples: Sample[], by: string): Scale {
  const isSigned = by === "gap" || by === "advantage";
  const all = samples.flatMap((sample) => valuesOf(sample, by)).filter((value) => value !== null);
  const sizes = all.map((value) => (isSigned ? Math.abs(value) : value)).sort((a, b) => a - b);
  return { low: by === "version" ? (sizes[0] ?? 0) - 1 : 0, high: sizes[Math.floor((sizes.length - 1) * 0.99)] || 1, isSigned };
}

function classOf(value: number | null, { low, high, isSigned }: Scale): string | undefined {
  if (value === null) return undefined;
  const share = Math.min(1, ((isSigned ? Math.abs(value) : value) - low) / (high - low || 1));
  const step = Math.round(share * STEPS);
  if (!step) return undefined;
  return `${isSigned && value < 0 ? "down" : "up"}${step}`;
}

function facts(sample: Sample, at: number): string {
  const { sampler_logprobs: sampler, learner_logprobs: learner, entropy, advantages, token_ids: ids, tokens } = sample;
  const version = versionOf(sample, at);
  const numbers = [
    `token ${at} ${JSON.stringify(tokens?.[at] ?? "")} (${ids[at]})`,
    version === null ? "not sampled by the policy" : `version ${version}`,
    sampler[at] == null ? null : `sampler ${number(sampler[at], 4)}`,
    learner?.[at] == null ? null : `learner ${number(learner[at], 4)}`,
    sampler[at] == null || learner?.[at] == null ? null : `gap ${number(learner[at]! - sampler[at]!, 4)}`,
    entropy?.[at] == null ? null : `entropy ${number(entropy[at], 3)}`,
    advantages?.[at] == null ? null : `advantage ${number(advantages[at], 3)}`,
  ];
  return numbers.filter(Boolean).join(" · ");
}
