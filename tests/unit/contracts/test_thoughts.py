"""Where thoughts end and answers begin."""

import time

import pytest

from services.contracts.thoughts import Thoughts, answer_of, prefill_of, read_thoughts

FENCED = "```python\ns = '<think>'\nt = '''\n<think>\n'''\nprint(s)\n```\n"
QUOTED = "s = '''\n<think>\n'''\nprint(s)\n"
UNFENCED = "import re\nprint(re.sub(r'<think>.*</think>', '', s))\n"


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("5", "5"),
        ("<think>4</think>5", "5"),
        ("4</think>5", "5"),
        ("<think>3</think>4<think>no</think>5", "5"),
        ("[THINK]4[/THINK]5", "5"),
        ("<THINKING>4</thinking>5", "5"),
        ("<reasoning>\n4\n</reasoning>\n<answer>5</answer>", "\n<answer>5</answer>"),
        ("<|begin_of_thought|>4<|end_of_thought|>5", "5"),
        ("<seed:think>4</seed:think>5", "5"),
        ("◁think▷4◁/think▷5", "5"),
        ("<|channel>thought\n4<channel|>5", "5"),
        ("<|channel|>analysis<|message|>4assistant<|channel|>final<|message|>5", "5"),
        ("<cot>4</cot>5", "5"),
        ("< think >4</ think >5", "5"),
        ("<|think|>4<|/think|>5", "5"),
        ("<|begin_of_thinking|>4<|end_of_thinking|>5", "5"),
        ("<|thinking_start|>4<|thinking_end|>5", "5"),
        ("<unused94>thought\n4<unused95>5", "5"),
        # A thought after the answer belongs to no answer.
        ("<answer>5</answer>\n<rationale>not 4</rationale>\n", "<answer>5</answer>\n"),
        ("<think>4</think>5<reflection>or 4?</reflection>", "5"),
        ("<think>4</think>\n<think>5</think>", ""),
        ("4</think>", ""),
        # Tags of another kind close nothing.
        ("<think>4</thinking>[/THINK]</think>5", "5"),
    ],
)
def test_an_answer_follows_the_last_thought(completion: str, answer: str) -> None:
    assert answer_of(completion) == answer


@pytest.mark.parametrize(
    "completion",
    [
        "<think>2+3 = 5, but wait",
        "  \n<think>5",
        "Sure! <think>5",
        "<think>4</think>5\n<think>or 6",
        "<think>5</think",
        "<think>5</thinking>",
        "[THINK]5",
        "<reasoning>5 <answer>5</answer>",
        "<thought>5",
        "<|begin_of_thought|>5",
        "<|START_THINKING|>5",
        "<|think|>5",
        "<|start_of_reasoning|>5",
        "<rationale>5",
        "<chain_of_thought>5",
        "5 <reason>4",
        "<|channel|>analysis<|message|>5",
        "<|channel|>commentary to=functions.f<|message|>5",
        # A thought may hold half of a block of code, and quotes.
        "<think>```python\nprint('5')\n",
    ],
)
def test_a_thought_without_an_end_has_no_answer(completion: str) -> None:
    assert answer_of(completion) is None


@pytest.mark.parametrize(
    ("completion", "prefill", "answer"),
    [
        ("2+3 = 5, but wait", "<think>\n", None),
        ("2+3 = 5</think>\n5", "<think>\n", "\n5"),
        ("so '5'</think>5", "<think>", "5"),
        ("<think>again</think>5", "<think>", "5"),
        ("```python\nx = 1\n</think>\n```python\ny\n```", "<think>\n", "\n```python\ny\n```"),
        ("5", "<think>\n\n</think>\n\n", "5"),
        ("4[/THINK]5", "[THINK]", "5"),
        ("5", "[THINK]", None),
        ("4<channel|>5", "<|channel>thought\n", "5"),
        ("4</think>5<reflection>4</reflection>", "<think>\n", "5"),
        ("5", "<cot>\n", None),
    ],
)
def test_the_prompt_may_have_opened_the_thought(
    completion: str, prefill: str, answer: str | None
) -> None:
    assert answer_of(completion, prefill) == answer


@pytest.mark.parametrize("thought", ["", "<think>hm</think>\n"])
@pytest.mark.parametrize(
    "answer",
    [
        FENCED,
        UNFENCED,
        QUOTED,
        "~~~\n<think>\n~~~\n5",
        "I used the <think> tag and </think>. It is 5.",
        "Wrap it in `<think>`: 5",
        '{"text": "<think>", "n": 5}',
    ],
)
def test_a_tag_that_an_answer_mentions_opens_no_thought(thought: str, answer: str) -> None:
    assert answer_of(thought + answer) is not None
    assert (answer_of(thought + answer) or "").strip() == answer.strip()


def test_the_first_thought_is_known() -> None:
    assert read_thoughts("<think> a </think>b<think>c</think>d") == Thoughts("a", 35, 36)
    assert read_thoughts(" a </think>b", "<think>\n") == Thoughts("a", 11, 12)
    assert read_thoughts("b") == Thoughts(None, 0, 1)


@pytest.mark.parametrize(
    ("prompt", "prefill"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("Assistant: Let me think.\n<think>", "<think>"),
        ("assistant\n<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n"),
        ("<|assistant|><think></think>", "<think></think>"),
        ("[/INST][THINK]", "[THINK]"),
        ("<|assistant|><|think|>\n", "<|think|>\n"),
        (
            "<|start|>assistant<|channel|>analysis<|message|>",
            "<|channel|>analysis<|message|>",
        ),
        ("<|turn>model\n<|channel>thought\n", "<|channel>thought\n"),
        ("Put your thoughts in <think> and </think>.\nassistant\n", ""),
        ("Begin with <think>, then answer: ", ""),
        ("2+3=", ""),
        ("", ""),
    ],
)
def test_a_prompts_end_says_whether_it_has_opened_a_thought(prompt: str, prefill: str) -> None:
    assert prefill_of(prompt) == prefill


@pytest.mark.parametrize(
    "text",
    ["<think>", "</think>", "<think></think>", "\"'`", " \t", "\n", "<|channel|>analysis", "a <t"],
)
def test_the_time_is_linear(text: str) -> None:
    began = time.process_time()
    read_thoughts(text * (1_000_000 // len(text)) + "<think>")
    prefill_of(text * (1_000_000 // len(text)))
    assert time.process_time() - began < 3
