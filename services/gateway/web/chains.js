// Chains: entries of the list, with their steps, and the chain that the shown run is a step of.

import { $, OVER, ago, badge, element } from "./dom.js";

export let chain = null; // the chain whose step is shown

export const chainPath = (id, rest = "") => `v1/chains/${encodeURIComponent(id)}${rest}`;

// The newest chains, each as one entry with a button for each step.
export function showChains(chains, shownRun, open) {
  $("chains").replaceChildren(...chains.map((listed) => entry(listed, shownRun, open)));
}

function entry(listed, shownRun, open) {
  const item = element("li", null, { class: "chain" });
  const title = element("div", null, { title: listed.reason });
  title.append(element("b", listed.name), badge(listed.state));
  item.append(title, element("small", `${listed.id} · ${ago(listed.created)}`), steps(listed, shownRun, open));
  return item;
}

function steps({ steps }, shownRun, open) {
  const list = element("ol");
  for (const step of steps) {
    const button = element("button", null, { "aria-current": step.run !== null && step.run === shownRun });
    const done = step.run && step.state !== "queued" && step.max_steps !== 0 ? ` ${step.step}${step.max_steps ? `/${step.max_steps}` : ""}` : "";
    button.append(element("b", step.name), badge(step.state), element("small", done));
    button.disabled = step.run === null;
    button.addEventListener("click", () => open(step.run));
    const item = element("li");
    item.append(button);
    list.append(item);
  }
  return list;
}

// Show the chain that the run is a step of, above the run.
export function showChain(chains, run, open) {
  chain = chains.find(({ id }) => id === run?.chain) ?? null;
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
