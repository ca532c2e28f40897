// The page: its frame, and the view that the address names.

import { effect } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { isAway, mayChange, needsKey } from "./api";
import { Datasets } from "./datasets";
import { listen } from "./live";
import "./page.css";
import { Compare } from "./compare";
import { followLinks, go, parts, runPath } from "./router";
import { RunView } from "./run";
import { ChainView, Runs } from "./runs";
import { KeyForm, learnRole, leave, useLoginLink } from "./session";
import { Submit } from "./submit";
import { Try } from "./try";
import { Workers } from "./workers";

interface View {
  title: string;
  show: () => preact.JSX.Element;
}

const VIEWS: Record<string, View> = {
  "": { title: "Runs", show: Runs },
  chains: { title: "Chain", show: ChainView },
  runs: { title: "Run", show: RunView },
  datasets: { title: "Datasets", show: Datasets },
  try: { title: "Try", show: Try },
  submit: { title: "Submit", show: Submit },
  compare: { title: "Compare", show: Compare },
  workers: { title: "Workers", show: Workers },
};
const LINKS: [string, string][] = [["/", "Runs"], ["/compare", "Compare"], ["/submit", "Submit"], ["/datasets", "Datasets"], ["/try", "Try"], ["/workers", "Workers"]];

function Page() {
  const name = parts.value[0] ?? "";
  const view = VIEWS[name];
  useEffect(() => {
    if (name !== "runs") document.title = `${view?.title ?? "Not found"} · Headrace`;
    // A reader who cannot see that the view has changed is told so by its heading.
    document.querySelector<HTMLElement>("h1")?.focus({ preventScroll: true });
  }, [name, name === "runs" ? parts.value[1] : ""]);
  const isCurrent = (path: string) => (path === "/" ? name === "" || name === "runs" : path === `/${name}`);
  return (
    <>
      <a class="skip" href="#main">To the content</a>
      <header class="top">
        <a class="brand" href="/">Headrace</a>
        {!needsKey.value && (
          <nav aria-label="Views">
            {LINKS.filter(([path]) => mayChange.value || path !== "/submit").map(([path, text]) => <a key={path} href={path} aria-current={isCurrent(path) ? "page" : undefined}>{text}</a>)}
          </nav>
        )}
        <p class="problem" role="status">{isAway.value ? "The gateway does not answer; trying again." : ""}</p>
        <nav class="aside" aria-label="Elsewhere">
          <a href="/guide/" target="_blank" rel="noopener">Guide</a>
          <a href="/docs" target="_blank" rel="noopener">API</a>
          {!needsKey.value && <button class="link" onClick={() => void leave()}>Log out</button>}
        </nav>
      </header>
      {needsKey.value ? <KeyForm /> : view ? <view.show /> : <main id="main"><h1>Not found</h1></main>}
    </>
  );
}

// Addresses from before runs had paths: /#RUN.
if (location.pathname === "/" && location.hash.length > 1 && !location.hash.startsWith("#login="))
  go(runPath(decodeURIComponent(location.hash.slice(1))), { replace: true });
followLinks();
void useLoginLink().then(() => {
  void learnRole();
  render(<Page />, document.body);
  listen();
});
effect(() => {
  if (needsKey.value) document.title = "Log in · Headrace";
});
