// The form for the API key, and login links. The key becomes a cookie that no script can read.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { mayChange, needsKey, send, words } from "./api";

const USED = "This login link was used already, or is older than an hour. `headrace keys link` prints another.";
let usedLink = "";

const enter = (key: string) =>
  send("/v1/session", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ key }) });

/** Log in with the token that a login link brings after the #, which no server and no other page sees. */
export async function useLoginLink(): Promise<void> {
  if (!location.hash.startsWith("#login=")) return;
  const key = location.hash.slice("#login=".length);
  history.replaceState(null, "", location.pathname + location.search);
  // A used link does no harm to a session that is there: the words are only shown with the form.
  await enter(key).catch(() => (usedLink = USED));
}

/** Learn what the key of this session may do. */
export async function learnRole(): Promise<void> {
  // A gateway that does not answer now refuses what the key may not do.
  const session = (await send("/v1/session").catch(() => null)) as { role: string | null } | null;
  if (session?.role === null) needsKey.value = true;
  mayChange.value = session?.role !== "read";
}

export async function leave(): Promise<void> {
  await send("/v1/session", { method: "DELETE" });
  location.reload();
}

export function KeyForm() {
  const problem = useSignal(usedLink);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  const submit = async (event: Event) => {
    event.preventDefault();
    try {
      await enter(field.current?.value ?? "");
      needsKey.value = false;
      location.reload();
    } catch (error) {
      problem.value = words(error);
    }
  };
  return (
    <main id="main" class="login">
      <form onSubmit={submit}>
        <h1>API key</h1>
        <p class="quiet">
          Paste your API key, or open the link that <code>headrace up</code> printed. <code>headrace keys link</code> prints another link.
        </p>
        <label for="key">Key</label>
        <input id="key" type="password" autocomplete="current-password" required ref={field} />
        <button class="primary">Log in</button>
        <p class="problem" role="alert">{problem}</p>
      </form>
    </main>
  );
}
