// The page to watch: the list of runs, the workers, and the run that is shown (run.js). Text from the
// API only ever becomes textContent, never markup.

import { askForKey, get, post, remove, runPath } from "./api.js";
import { chain, chainPath, showChain, showChains } from "./chains.js";
import { $, OVER, ago, badge, element, number, tableRow } from "./dom.js";
import { refreshEvaluations } from "./evaluations.js";
import * as shown from "./run.js";

const LIST = "v1/runs?limit=30";
const CHAINS = "v1/chains?limit=30";
const SLOW = 4; // workers and answers are asked for at every fourth look

let listed = null; // the newest page of runs
let chains = []; // the newest page of chains
let older = []; // pages that were asked for
let pinned = false; // the user chose a run: do not jump to newer ones
let looks = 0;

async function refresh() {
  try {
    listed = await get(LIST);
    ({ chains } = await get(CHAINS));
    $("connection").textContent = "";
    askForKey(false);
    const named = addressed();
    if (!pinned) await (named ? show(named) : choose());
    await follow();
    showRuns();
    if (looks++ % SLOW === 0) {
      showWorkers((await get("v1/workers")).workers);
      if (shown.run) await shown.refreshAnswers();
      await refreshEvaluations(shown.run);
    }
  } catch (error) {
    if ($("key-form").hidden)
      $("connection").textContent = error instanceof TypeError ? "The gateway does not answer; trying again." : error.message;
  }
}

// The run that the address names, as it is written where that is no encoded text.
function addressed() {
  const text = location.hash.slice(1);
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// Show the run that works now, or else the newest one where none is shown.
async function choose() {
  if (shown.run && looks % SLOW) return;
  const { runs } = await get("v1/runs?limit=1&state=starting&state=running&state=paused&state=cancelling");
  const next = runs[0] ?? (shown.run ? null : listed.runs[0]);
  if (next && next.id !== shown.run?.id) shown.open(await get(runPath(next.id)));
}

// Show a run that somebody asked for by id or name.
async function show(named) {
  pinned = true;
  try {
    const record = await get(runPath(named));
    history.replaceState(null, "", `#${encodeURIComponent(record.id)}`);
    $("missing").hidden = true;
    shown.open(record);
  } catch (error) {
    if (error.status !== 404 && error.status !== 409) throw error;
    shown.close();
    $("missing").hidden = false;
    $("missing-reason").textContent = error.message;
  }
  showRuns();
}

async function follow() {
  if (!shown.run) return;
  const fresh = listed.runs.find(({ id }) => id === shown.run.id);
  if (fresh) return shown.update(fresh);
  if (OVER.has(shown.run.state) && looks % SLOW) return;
  try {
    shown.update(await get(runPath(shown.run.id)));
  } catch (error) {
    if (error.status !== 404) throw error;
    leave(); // somebody deleted it
  }
}

// Show no run, so that the next list chooses one.
function leave() {
  shown.close();
  pinned = false;
  history.replaceState(null, "", location.pathname);
}

const open = (run) => show(run).catch(() => {});

function showRuns() {
  showChains(chains, shown.run?.id, open);
  showChain(chains, shown.run, open);
  const inChains = new Set(chains.map(({ id }) => id));
  const runs = [...listed.runs, ...older.flatMap((page) => page.runs)];
  const ids = new Set();
  const unique = runs.filter(({ id, chain }) => !inChains.has(chain) && !ids.has(id) && ids.add(id));
  $("no-runs").hidden = runs.length > 0;
  $("welcome").hidden = runs.length > 0 || pinned;
  $("older").hidden = (older.at(-1) ?? listed).next === null;
  $("runs").replaceChildren(...unique.map(entry));
}

function entry({ id, name, state, created, step, max_steps: last }) {
  const button = element("button", null, { "aria-current": id === shown.run?.id });
  const progress = state === "queued" || last === 0 ? "" : ` · step ${step}${last ? ` of ${last}` : ""}`;
  const line = element("small", `${id} · ${ago(created)}${progress}`, { title: new Date(created * 1000).toLocaleString() });
  button.append(element("b", name), badge(state), line);
  button.addEventListener("click", () => open(id));
  const item = element("li");
  item.append(button);
  return item;
}

function showWorkers(workers) {
  $("workers-box").hidden = workers.length === 0;
  $("workers").replaceChildren(
    ...workers.map((w) =>
      tableRow(
        w.id,
        [w.state, ["unhealthy", "silent"].includes(w.state) ? "failed" : ""],
        w.run ?? "",
        [w.version ?? "", "n"],
        [w.groups_in_flight, "n"],
        [number(w.tokens_per_second, 0), "n"],
        [ago(w.heartbeat), "n"],
        w.error,
      ),
    ),
  );
}

async function showRecipes() {
  const { recipes } = await get("v1/recipes");
  $("recipes").replaceChildren(
    ...recipes.map((recipe) => {
      const details = element("details");
      details.append(element("summary", recipe.name), element("p", recipe.when));
      return details;
    }),
  );
}

// Do something with the shown run; what the gateway refuses stands under its name.
function onClick(id, action) {
  $(id).addEventListener("click", async () => {
    $(id).disabled = true;
    $("action-problem").textContent = "";
    try {
      await action(shown.run);
    } catch (error) {
      $("action-problem").textContent = error.message;
    }
    $(id).disabled = false;
  });
}

onClick("cancel", async (run) => {
  if (confirm(`Cancel ${run.name}? It writes a checkpoint first, and can be resumed.`))
    shown.update(await post(runPath(run.id, "/cancel")));
});
onClick("resume", async (run) => {
  const record = await post("v1/runs", { resume_from: run.id });
  await show(record.id);
});
onClick("delete", async (run) => {
  const made = run.step ? `, the ${run.step} steps it has trained` : "";
  if (!confirm(`Delete ${run.name} (${run.id})? Its checkpoints${made} and its answers are gone for good.`)) return;
  await remove(runPath(run.id));
  older = [];
  leave();
  await refresh();
});
onClick("chain-cancel", async () => {
  if (!confirm(`Cancel ${chain.name}? Its present run writes a checkpoint first, and the chain can be resumed.`)) return;
  await post(chainPath(chain.id, "/cancel"));
  await refresh();
});
onClick("chain-resume", async () => {
  const view = await post(chainPath(chain.id, "/resume"), {});
  await refresh();
  if (view.steps[view.at].run) await show(view.steps[view.at].run);
});
onClick("chain-delete", async () => {
  if (!confirm(`Delete ${chain.name} (${chain.id})? All its runs, their checkpoints and answers are gone for good.`)) return;
  await remove(chainPath(chain.id));
  older = [];
  leave();
  await refresh();
});
onClick("older", async () => {
  older.push(await get(`${LIST}&cursor=${encodeURIComponent((older.at(-1) ?? listed).next)}`));
  showRuns();
});
addEventListener("hashchange", () => {
  // A login link reloads the page (api.js); its token belongs in no path.
  if (!location.hash.startsWith("#login=")) show(addressed()).catch(() => {});
});

$("curl").textContent =
  `echo "Authorization: Bearer KEY" >header\n` +
  `curl -H @header -F name=mine \\\n  -F file=@train.jsonl \\\n  ${location.origin}/v1/datasets\n` +
  `curl -H @header \\\n  ${location.origin}/v1/runs \\\n  -H 'content-type: application/json' \\\n` +
  `  -d '{"recipe": "grpo", "config": {\n` +
  `  "model": {"path": "PATH"},\n  "data": {"dataset": "mine"}}}'`;
showRecipes().catch(() => setTimeout(showRecipes, 5000));
(async function look() {
  await refresh();
  setTimeout(look, document.hidden ? 15000 : 3000);
})();
