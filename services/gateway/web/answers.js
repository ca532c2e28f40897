// The newest answers of a run. They are what a policy sampled: never anything but textContent.

import { element, number } from "./dom.js";

// `samples`: as GET /v1/runs/RUN/samples has them, judged ones with step 0; of a step the best first.
export function showAnswers(list, samples) {
  const ordered = [...samples].sort((a, b) => b.step - a.step || (b.reward ?? -Infinity) - (a.reward ?? -Infinity));
  list.replaceChildren(...ordered.map(answer));
}

// Where its prompt came from.
function origin({ own, dataset, row }) {
  if (own != null) return `a client's prompt${own ? ` “${own}”` : ""}`;
  return `${dataset ? `${dataset}, ` : ""}row ${row}`;
}

// What each verifier says of an answer.
export function reasons(sample) {
  return Object.entries(sample.reasons).map(([name, reason]) => element("p", `${name}: ${reason}`));
}

function answer(sample) {
  const item = element("li");
  const head = element("p");
  head.append(
    element("b", `reward ${number(sample.reward, 3) ?? "–"}`),
    element("span", sample.status),
    element("span", sample.step ? `step ${sample.step}` : "judged, not trained"),
    ...(sample.step ? [element("span", `advantage ${number(sample.advantage, 3) ?? "–"}`)] : []),
    element("span", `${sample.tokens} tokens, ${sample.finish_reason}`),
    element("span", `${origin(sample)}, task ${sample.task}`),
  );
  const parts = Object.entries(sample.components);
  if (parts.length > 1)
    head.append(element("span", parts.map(([name, value]) => `${name} ${number(value, 3) ?? "–"}`).join(", ")));
  item.append(head, element("pre", sample.prompt, { class: "quiet" }), element("pre", sample.completion), ...reasons(sample));
  if (sample.reference) item.append(element("p", "reference"), element("pre", sample.reference, { class: "quiet" }));
  return item;
}
