// Chains: entries of the list, with their steps, and the chain that the shown run is a step of.

import { ago, element } from "./dom.js";

const $ = (id) => document.getElementById(id);

export let chain = null; // the one whose step is shown
const OVER = new Set(["succeeded", "failed", "cancelled"]);

export const chainPath = (id, rest = "") => `v1/chains/${encodeURIComponent(id)}${rest}`;

// The newest chains, each as one entry with a button for each step.
export function showChains(chains, shownRun, open) {
  $("chains").replaceChildren(...chains.map((one) => entry(one, shownRun, open)));
}

function entry(one, shownRun, open) {
  const item = element("li", null, { class: "chain" });
  const title = element("div", null, { title: one.reason });
  title.append(element("b", one.name), element("span", one.state, { class: `badge ${one.state}` }));
  item.append(title, element("small", `${one.id} · ${ago(one.created)}`), steps(one, shownRun, open));
  return item;
}

function steps(one, shownRun, open) {
  const list = element("ol");
  for (const step of one.steps) {
    const button = element("button", null, { "aria-current": step.run !== null && step.run === shownRun });
    const done = step.run && step.state !== "queued" && step.max_steps !== 0 ? ` ${step.step}${step.max_steps ? `/${step.max_steps}` : ""}` : "";
    button.append(element("b", step.name), element("span", step.state, { class: `badge ${step.state}` }), element("small", done));
    button.disabled = step.run === null;
    button.addEventListener("click", () => open(step.run));
    const item = element("li");
    item.append(button);
    list.append(item);
  }
  return list;
}

// The chain that the run is a step of, above the run; nothing for a run of none.
export function showChain(chains, run, open) {
  chain = chains.find((one) => one.id === run?.chain) ?? null;
  $("chain").hidden = chain === null;
  if (chain === null) return;
  $("chain-name").textContent = chain.name;
  $("chain-id").textContent = chain.id;
  $("chain-state").textContent = chain.state;
  $("chain-state").className = `badge ${chain.state}`;
  $("chain-note").textContent = chain.note;
  $("chain-reason").textContent = chain.reason;
  $("chain-report").href = chainPath(chain.id, "/report");
  $("chain-cancel").hidden = OVER.has(chain.state) || chain.state === "cancelling";
  $("chain-resume").hidden = !(chain.state === "failed" || chain.state === "cancelled");
  $("chain-delete").hidden = !OVER.has(chain.state);
  $("chain-steps").replaceChildren(...steps(chain, run.id, open).children);
}
