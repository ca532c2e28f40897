// Try: talk with the policy of a run while it trains, with two runs or versions side by side; or try a verifier.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { get, mayChange, refusalOf, words } from "./api";
import { on } from "./live";
import { Problem, useLoaded } from "./parts";
import { ask, query } from "./router";
import { known } from "./store";
import { TryVerifier } from "./verifier";

interface Message {
  role: "user" | "assistant" | "system";
  content: string;
}

export function Try() {
  const isVerifier = query.value.get("what") === "verifier";
  return (
    <main id="main" class="try">
      <header class="bar"><h1 tabIndex={-1}>Try</h1></header>
      <nav class="tabs" aria-label="What to try">
        <a href="/try" aria-current={isVerifier ? undefined : "page"}>a policy</a>
        <a href="/try?what=verifier" aria-current={isVerifier ? "page" : undefined}>a verifier</a>
      </nav>
      {isVerifier ? <TryVerifier /> : <TryPolicy />}
    </main>
  );
}

function TryPolicy() {
  const { data, error, again } = useLoaded((signal) => get("/v1/models", { signal }), "models");
  const hasNone = !!data && !(data as { data?: unknown[] }).data?.length;
  // A worker that begins to serve is told by the stream.
  useEffect(() => (hasNone ? on("workers", again) : undefined), [hasNone]);
  const models = ((data as { data?: { id: string }[] } | null)?.data ?? []).map(({ id }) => id);
  const first = query.value.get("model") ?? models[0] ?? "";
  const second = query.value.get("against") ?? "";
  const turns = useSignal<{ prompt: string; number: number } | null>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  const options = { temperature: query.value.get("temperature") ?? "", max_tokens: query.value.get("max_tokens") ?? "" };
  const sayIt = (event: Event) => {
    event.preventDefault();
    const prompt = field.current?.value.trim();
    if (!prompt) return;
    turns.value = { prompt, number: (turns.value?.number ?? 0) + 1 };
    field.current!.value = "";
  };
  return (
    <>
      <Problem error={error} />
      <datalist id="models">{models.map((each) => <option key={each} value={each} />)}</datalist>
      <div class="toolbar">
        <ModelField name="model" label="Policy" value={first} placeholder="RUN or RUN@STEP" />
        <ModelField name="against" label="Beside it" value={second} placeholder="none" />
        <label class="choice"><span class="quiet">Temperature</span><input type="number" step="0.1" min="0" placeholder="as trained" value={options.temperature} onChange={(event) => ask({ temperature: event.currentTarget.value || null })} /></label>
        <label class="choice"><span class="quiet">Tokens</span><input type="number" min="1" placeholder="as trained" value={options.max_tokens} onChange={(event) => ask({ max_tokens: event.currentTarget.value || null })} /></label>
      </div>
      {data && !models.length && <p class="quiet empty">No worker serves a run now. A run that trains is listed here as soon as its worker is ready; <code>headrace chat RUN</code> loads one that is over.</p>}
      <div class={second ? "talks two" : "talks"}>
        {[first, second].filter(Boolean).map((model) => <Talk key={model} model={model} turn={turns.value} options={options} />)}
      </div>
      <form class="say" onSubmit={sayIt}>
        <textarea ref={field} rows={3} aria-label="Message" placeholder="A message to the policy. Enter sends it, Shift+Enter begins a line." onKeyDown={(event) => event.key === "Enter" && !event.shiftKey && sayIt(event)} />
        <button class="primary" disabled={!first || !mayChange.value}>Send</button>
        {!mayChange.value && <p class="quiet">A key that only reads cannot use the workers. Log in with a key of the role <code>submit</code>.</p>}
      </form>
    </>
  );
}

function ModelField({ name, label, value, placeholder }: { name: string; label: string; value: string; placeholder: string }) {
  // The models may come while one types: that changes no letter.
  const typed = useSignal<string | null>(null);
  return (
    <label class="choice">
      <span class="quiet">{label}</span>
      <input
        list="models"
        aria-label={label}
        value={typed.value ?? value}
        placeholder={placeholder}
        onInput={(event) => (typed.value = event.currentTarget.value)}
        onChange={(event) => ask({ [name]: event.currentTarget.value.trim() || null })}
        onBlur={() => (typed.value = null)}
      />
    </label>
  );
}

function Talk({ model, turn, options }: { model: string; turn: { prompt: string; number: number } | null; options: { temperature: string; max_tokens: string } }) {
  const messages = useSignal<Message[]>([]);
  const error = useSignal<unknown>(null);
  const answering = useSignal(false);
  const version = useSignal("");
  const run = model.split("@")[0]!;
  const name = known(run)?.value.name;
  const { data: record } = useLoaded((signal) => get("/v1/runs/{run}", { path: { run }, signal }), run);
  const template = templateOf(record?.config);
  const isAsTrained = template !== PLAIN && query.value.get("template") !== "none";
  useEffect(() => {
    if (!turn) return;
    const controller = new AbortController();
    const content = isAsTrained ? template.replace(PLAIN, () => turn.prompt) : turn.prompt;
    messages.value = [...messages.peek(), { role: "user", content }];
    const asked = messages.peek();
    error.value = null;
    answering.value = true;
    const add = (text: string, name: string) => {
      version.value = name || version.peek();
      const last = messages.peek().at(-1);
      const before = last?.role === "assistant" ? last.content : "";
      messages.value = [...asked, { role: "assistant", content: before + text }];
    };
    complete({ model, messages: asked, ...given(options) }, add, controller.signal)
      .catch((failure: unknown) => controller.signal.aborted || (error.value = failure))
      .finally(() => (answering.value = false));
    return () => controller.abort();
  }, [turn?.number]);
  return (
    <section class="card" aria-label={`Talk with ${model}`} aria-busy={answering.value}>
      <div class="line"><h2>{name ?? model}</h2><span class="quiet">{version.value || (name && model)}</span>{messages.value.length > 0 && <button class="link" onClick={() => (messages.value = [])}>Begin anew</button>}</div>
      {template !== PLAIN && (
        <label class="choice"><input type="checkbox" checked={isAsTrained} onChange={() => ask({ template: isAsTrained ? "none" : null })} /> <span class="quiet">Ask as the run does: <code>{template}</code></span></label>
      )}
      <ol aria-live="polite">
        {messages.value.map((message, i) => <li key={i} class={message.role}><span class="quiet">{message.role}</span>{message.content || (answering.value && i === messages.value.length - 1) ? <pre>{message.content}</pre> : <p class="quiet">an empty answer</p>}</li>)}
      </ol>
      {!messages.value.length && !error.value && <p class="quiet">Nothing is said yet. These calls are not trained on.</p>}
      {answering.value && messages.value.at(-1)?.role === "user" && <p class="quiet">waits for the first token…</p>}
      {error.value ? <p class="problem" role="alert">{words(error.value)}</p> : null}
    </section>
  );
}

const PLAIN = "{prompt}";

/** The text around a prompt in the run's training. */
function templateOf(config: unknown): string {
  const { data } = (config ?? {}) as { data?: { template?: string | null } };
  return data?.template?.includes(PLAIN) ? data.template : PLAIN;
}

const given = ({ temperature, max_tokens }: { temperature: string; max_tokens: string }) => ({
  ...(temperature ? { temperature: Number(temperature) } : {}),
  ...(max_tokens ? { max_tokens: Number(max_tokens) } : {}),
});

/** Stream an answer of OpenAI's API, piece by piece. */
async function complete(body: object, add: (text: string, model: string) => void, signal: AbortSignal): Promise<void> {
  const url = "/v1/chat/completions";
  const response = await fetch(url, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ...body, stream: true }), signal });
  if (!response.ok || !response.body) throw await refusalOf(response, url);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (text + value).split("\n");
    text = lines.pop() ?? "";
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const piece = JSON.parse(line.slice("data: ".length)) as { model?: string; error?: { message: string }; choices?: { delta?: { content?: string | null } }[] };
      if (piece.error) throw new Error(piece.error.message);
      add(piece.choices?.[0]?.delta?.content ?? "", piece.model ?? "");
    }
  }
}
