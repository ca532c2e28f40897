// The whole state of the page is its address: the path names the view, the query what it shows.

import { computed, signal } from "@preact/signals";

const url = signal(new URL(location.href));

/** The parts of the path, decoded: `/runs/ab12/config` is ["runs", "ab12", "config"]. */
export const parts = computed(() => url.value.pathname.split("/").filter(Boolean).map(decoded));
export const query = computed(() => url.value.searchParams);

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // no encoded text: as it is written
  }
}

/** Go to an address of the page. Back returns from it, unless it replaces the present one. */
export function go(to: string, { replace = false } = {}): void {
  const next = new URL(to, location.href);
  if (next.href === location.href) return;
  const isView = next.pathname !== location.pathname;
  history[replace ? "replaceState" : "pushState"](null, "", next);
  url.value = next;
  if (isView && !replace) scrollTo(0, 0);
}

/** Change parts of the query; null or an empty text removes one. */
export function ask(changes: Record<string, string | null>, { push = false } = {}): void {
  const next = new URL(location.href);
  for (const [name, value] of Object.entries(changes))
    if (value) next.searchParams.set(name, value);
    else next.searchParams.delete(name);
  go(next.href, { replace: !push });
}

export const runPath = (id: string, tab = "") => `/runs/${encodeURIComponent(id)}${tab ? `/${tab}` : ""}`;

const OURS = /^\/($|runs\/|compare$|submit$|datasets(\/|$)|try$|workers$)/;

/** Follow the page's own links without loading it again. */
export function followLinks(): void {
  addEventListener("popstate", () => (url.value = new URL(location.href)));
  addEventListener("hashchange", () => location.hash.startsWith("#login=") && location.reload());
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest("a");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (link.target || link.hasAttribute("download") || link.origin !== location.origin || link.hash || !OURS.test(link.pathname)) return;
    event.preventDefault();
    go(link.href);
  });
}
