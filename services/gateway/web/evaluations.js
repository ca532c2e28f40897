// The evaluations of the shown run, and the answers of the chosen one. Prompts and answers are what
// datasets and policies say: never anything but textContent.

import { reasons } from "./answers.js";
import { get, runPath } from "./api.js";
import { $, element, number, tableRow } from "./dom.js";

const ROWS = 10; // answered rows a page

let run = null;
let known = ""; // what the table shows
let chosen = null; // the evaluation whose answers are shown
let shown = 0; // how many of its matching rows
let next = null; // the cursor of the next page of them

// Called again and again; only what has changed is drawn. `of`: the run's record, or null.
export async function refreshEvaluations(of) {
  if (of?.id !== run) clear(of?.id ?? null);
  if (run === null || of.kind !== "rl") return;
  const id = run;
  const { evaluations } = await get(runPath(id, "/evaluations"));
  const state = JSON.stringify(evaluations);
  if (run !== id || state === known) return;
  known = state;
  $("evaluations-box").hidden = !evaluations.length;
  $("evaluations").replaceChildren(...evaluations.map(line));
}

function clear(id) {
  run = id;
  known = "";
  close();
  $("evaluations-box").hidden = true;
  $("evaluations").replaceChildren();
}

function close() {
  chosen = null;
  $("evaluation-answers").hidden = true;
  $("evaluation-rows").replaceChildren();
}

function line(evaluation) {
  const { id, step, name, state, reason, metrics, answered, rows } = evaluation;
  const open = element("button", String(step), { title: `Answers of ${id}` });
  open.disabled = answered === 0;
  open.addEventListener("click", () => choose(id));
  const at = Math.max(0, ...Object.keys(metrics).map((metric) => Number(metric.match(/^pass_at_(\d+)$/)?.[1] ?? 0)));
  const row = tableRow(
    ["", "n"],
    name,
    state === "open" ? `${answered} of ${rows} rows` : reason ? `${state}: ${reason}` : state,
    [interval(metrics, "accuracy"), "n"],
    [at ? `${number(metrics[`pass_at_${at}`], 3)} (k = ${at})` : "–", "n"],
    [interval(metrics, "reward"), "n"],
    [number(metrics.tokens_mean, 1) ?? "–", "n"],
  );
  row.firstChild.append(open);
  if (id === chosen) row.setAttribute("aria-current", "true");
  return row;
}

function interval(metrics, name) {
  const mean = number(metrics[name], 3);
  if (mean === null) return "–";
  const ends = [metrics[`${name}_low`], metrics[`${name}_high`]].map((end) => number(end, 3));
  return ends.includes(null) ? mean : `${mean} (${ends[0]} to ${ends[1]})`;
}

async function choose(id) {
  if (chosen === id) return close();
  chosen = id;
  await load();
}

// The answers of the chosen evaluation, from the first matching row; `more`: the next ones.
async function load(more = false) {
  const id = chosen;
  if (id === null) return;
  const verdict = $("evaluation-verdict").value;
  const wanted = `?limit=${ROWS}${more ? `&cursor=${next}` : ""}${verdict ? `&verdict=${verdict}` : ""}`;
  const problem = $("evaluation-problem");
  problem.textContent = "";
  let page;
  try {
    page = await get(runPath(run, `/evaluations/${encodeURIComponent(id)}/answers${wanted}`));
  } catch (error) {
    problem.textContent = error.message;
    $("evaluation-answers").hidden = false;
    return;
  }
  if (chosen !== id || $("evaluation-verdict").value !== verdict) return;
  shown = (more ? shown : 0) + page.rows.length;
  next = page.next;
  if (!more) $("evaluation-rows").replaceChildren();
  $("evaluation-rows").append(...page.rows.map(answered));
  $("evaluation-title").textContent = `Answers of ${id}`;
  $("evaluation-count").textContent = `${shown} of ${page.total} rows`;
  $("evaluation-more").hidden = next === null;
  $("evaluation-answers").hidden = false;
}

function answered(row) {
  const item = element("li");
  const head = element("p");
  head.append(element("b", `row ${row.row}`));
  if (row.category !== null) head.append(element("span", row.category));
  if (row.error) head.append(element("span", row.error));
  const reference = typeof row.reference === "string" ? row.reference : JSON.stringify(row.reference);
  if (row.reference !== null) head.append(element("span", `reference ${reference}`.slice(0, 300)));
  item.append(head, element("pre", row.prompt, { class: "quiet" }));
  for (const sample of row.samples) {
    const verdict = element("p");
    verdict.append(
      element("b", `reward ${number(sample.reward, 3) ?? "–"}`),
      element("span", sample.status),
      element("span", `${sample.tokens} tokens${sample.truncated ? ", truncated" : ""}`),
    );
    item.append(verdict, element("pre", sample.text), ...reasons(sample));
  }
  return item;
}

$("evaluation-verdict").addEventListener("change", () => load());
$("evaluation-more").addEventListener("click", async () => {
  $("evaluation-more").disabled = true; // a second click would add the same rows again
  await load(true);
  $("evaluation-more").disabled = false;
});
