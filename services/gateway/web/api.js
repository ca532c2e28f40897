// Requests to the gateway. An answer that has not changed costs 304 and no body: the browser keeps it.

import { $ } from "./dom.js";

async function ask(path, options) {
  const response = await fetch(path, options);
  if (response.status === 204) return null;
  const body = await response.json();
  if (response.status === 401 && path !== "v1/session") askForKey(true);
  if (!response.ok) throw Object.assign(new Error(body.detail ?? response.statusText), { status: response.status });
  return body;
}

export const get = (path) => ask(path);
export const remove = (path) => ask(path, { method: "DELETE" });
export const post = (path, body) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: body && JSON.stringify(body) });

const USED_LINK =
  "This login link was used already, or is older than an hour. `headrace keys link` prints another.";

// A login link brings a token after the #, which no server and no other page gets to see.
if (location.hash.startsWith("#login=")) {
  const key = location.hash.slice("#login=".length);
  history.replaceState(null, "", location.pathname);
  await post("v1/session", { key }).catch((error) => {
    // Only shown with the form: a used link does no harm to the session that it began.
    if (error.status === 401) $("key-problem").textContent = USED_LINK;
  });
}

addEventListener("hashchange", () => location.hash.startsWith("#login=") && location.reload());

export const runPath = (id, rest = "") => `v1/runs/${encodeURIComponent(id)}${rest}`;

// Everything that a list has, page by page.
export async function* pages(path, cursor) {
  for (let next = null; ; ) {
    const page = await get(next === null ? path : `${path}&${cursor}=${encodeURIComponent(next)}`);
    yield page;
    next = page.next;
    if (next === null) return;
  }
}

export function askForKey(wanted) {
  if ($("key-form").hidden === !wanted) return;
  $("key-form").hidden = !wanted;
  document.querySelector("main").hidden = wanted;
  $("logout").hidden = wanted;
  if (wanted) $("key").focus();
}

$("logout").addEventListener("click", async () => {
  await remove("v1/session");
  location.reload();
});

$("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("key-problem").textContent = "";
  try {
    await post("v1/session", { key: $("key").value });
    location.reload();
  } catch (error) {
    $("key-problem").textContent = error.message;
  }
});
