// The newest answers of a run. They are what a policy sampled: never anything but textContent.

import { element, number } from "./dom.js";

// `samples`: as GET /v1/runs/RUN/samples has them, judged ones with step 0; of a step the best first.
export function showAnswers(list, samples) {
  const ordered = [...samples].sort((a, b) => b.step - a.step || (b.reward ?? -Infinity) - (a.reward ?? -Infinity));
  list.replaceChildren(...ordered.map(answer));
}

// Where its prompt came from.
function origin(one) {
  if (one.own != null) return `a client's prompt${one.own ? ` “${one.own}”` : ""}`;
  return `${one.dataset ? `${one.dataset}, ` : ""}row ${one.row}`;
}

// What each verifier says of an answer.
export function reasons(one) {
  return Object.entries(one.reasons).map(([name, reason]) => element("p", `${name}: ${reason}`));
}

function answer(one) {
  const item = element("li");
  const head = element("p");
  head.append(
    element("b", `reward ${number(one.reward, 3) ?? "–"}`),
    element("span", one.status),
    element("span", one.step ? `step ${one.step}` : "judged, not trained"),
    ...(one.step ? [element("span", `advantage ${number(one.advantage, 3) ?? "–"}`)] : []),
    element("span", `${one.tokens} tokens, ${one.finish_reason}`),
    element("span", `${origin(one)}, task ${one.task}`),
  );
  const parts = Object.entries(one.components);
  if (parts.length > 1)
    head.append(element("span", parts.map(([name, value]) => `${name} ${number(value, 3) ?? "–"}`).join(", ")));
  item.append(head, element("pre", one.prompt, { class: "quiet" }), element("pre", one.completion), ...reasons(one));
  if (one.reference) item.append(element("p", "reference"), element("pre", one.reference, { class: "quiet" }));
  return item;
}
