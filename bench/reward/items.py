"""What the benchmark of the reward service has scored: short math answers, programs,
conversations."""

import random
from typing import Any

Item = dict[str, Any]

POISON = {
    "verifier": "math",
    "completion": "\\boxed{9^{9^{9}}}",
    "answer": "5",
    "params": {"timeout": 1.0},
}
PROGRAM = """
def has_close_elements(numbers: list[float], threshold: float) -> bool:
    ordered = sorted(numbers)
    return any(b - a < threshold for a, b in zip(ordered, ordered[1:]))
"""
TESTS = [
    "assert has_close_elements([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3) == True",
    "assert has_close_elements([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.05) == False",
    "assert has_close_elements([1.0, 2.0, 5.9, 4.0, 5.0], 0.95) == True",
]


def math_items(kind: str, count: int, seed: int = 0) -> list[Item]:
    """`count` items, half of them right, 8 answers to a reference. `numbers`: as GSM8K has them, in
    the forms that models write. `expressions`: fractions, roots, polynomials, sets, intervals."""
    chosen = random.Random(seed)
    made: list[Item] = []
    while len(made) < count:
        a, b = chosen.randrange(2, 500), chosen.randrange(2, 50)
        reference, wrong = chosen.choice(
            [(f"{a:,}", f"{a + b:,}")]
            if kind == "numbers"
            else [
                (f"\\frac{{{a}}}{{{b}}}", f"\\frac{{{a + 1}}}{{{b}}}"),
                (f"{a}\\sqrt{{{b}}}", f"{a}\\sqrt{{{b + 1}}}"),
                (f"x^2+{a}x+{b}", f"x^2+{a}x-{b}"),
                (f"\\{{{a}, -{b}\\}}", f"\\{{{a}, {b}\\}}"),
                (f"({a}, {b}]", f"[{a}, {b}]"),
            ]
        )
        for sample in range(8):
            form = chosen.choice(["So it is $\\boxed{{{}}}$.", "The answer is ${}$."])
            said = form.format(wrong if sample % 2 else reference)
            made.append({"verifier": "math", "completion": said, "answer": reference})
    return made[:count]


def conversations(count: int) -> list[Item]:
    """`count` questions with an answer each, 40 to 400 characters together."""
    chosen = random.Random(0)

    def words(longest: int) -> str:
        return "".join(
            chosen.choices("abcdefghijklmnopqrstuvwxyz     ", k=chosen.randrange(20, longest))
        )

    return [
        {
            "verifier": "model",
            "prompt": [{"role": "user", "content": words(100)}],
            "completion": words(300),
        }
        for _ in range(count)
    ]
