"""The agent of `headrace demo --agent`: a program with OpenAI's client, as one would write it for
any server. It asks, runs the tool that the model calls, and asks again with the tool's result.

It reads the row from Headrace, and prints the answer's reward on its last line.
"""

import json
import os
from typing import Any

from openai import OpenAI

CALCULATE = {
    "type": "function",
    "function": {
        "name": "calculate",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
TURNS = 2


def calculate(arguments: str) -> str:
    """Return the tool's result for these arguments."""
    try:
        return str(sum(int(number) for number in json.loads(arguments)["expression"].split("+")))
    except (ValueError, LookupError, TypeError, AttributeError):
        return "error"


def answer(question: str) -> str | None:
    """The model's answer; None if it has only called its tool."""
    client = OpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY say where
    messages: list[Any] = [{"role": "user", "content": question}]
    tools: list[Any] = [CALCULATE]
    for _ in range(TURNS):
        response = client.chat.completions.create(model="policy", messages=messages, tools=tools)
        message = response.choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            result = calculate(call.function.arguments) if call.type == "function" else "error"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return None


if __name__ == "__main__":
    row = json.loads(os.environ["HEADRACE_ROW"])
    print(float(answer(row["prompt"]) == row["answer"]))
