"""docs/python-reference.md, from the client's docstrings. `make client` writes it.

It reads the source, so types stand as they were written.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "headrace"
PAGE = CLIENT.parent / "docs" / "python-reference.md"
HEAD = """\
# Python reference

Made from the code by `make client`; do not edit it here. [The Python client](python.md) shows how
the parts go together.

Each operation of the API is a function of `headrace.operations`: `client.send` takes the request
that it returns, and `client.pages` the function of a list. `/docs` of a gateway describes them.

`AsyncClient` has the same methods, to be awaited: `await run.wait()`, `async for run in
client.runs.list()`. Its classes are `AsyncRun`, `AsyncGroup` and `AsyncSession`.
"""
CLASSES = {
    "Client": ("client", "synchronous/client.py"),
    "Connection": ("client", "synchronous/connection.py"),
    "Runs": ("client.runs", "synchronous/runs.py"),
    "Run": ("run", "synchronous/runs.py"),
    "Rows": ("rows", "rows.py"),
    "Chart": ("chart", "chart.py"),
    "Report": ("report", "report.py"),
    "Chains": ("client.chains", "synchronous/chains.py"),
    "Evaluations": ("client.evaluations", "synchronous/evaluations.py"),
    "Datasets": ("client.datasets", "synchronous/datasets.py"),
    "Verifiers": ("client.verifiers", "synchronous/client.py"),
    "Workers": ("client.workers", "synchronous/client.py"),
    "Keys": ("client.keys", "synchronous/keys.py"),
    "Group": ("group", "synchronous/sessions.py"),
    "Session": ("session", "synchronous/sessions.py"),
}
"""Each class: the name that an instance has in examples, and the class's module."""
PARENT = "Connection"
"""The class whose methods belong to the client."""
HIDDEN = {"stream", "unpack", "send_parts"}
"""Methods for other classes of the client."""


def reference() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for name, (instance, file) in CLASSES.items():
        source = (CLIENT / file).read_text()
        members = next(
            each
            for each in ast.parse(source).body
            if isinstance(each, ast.ClassDef) and each.name == name
        )
        if name != PARENT:
            parts.append(f"\n## {name}\n\n{_about(members)}\n")
        parts += _members(members, "Client" if name == PARENT else name, instance, source)
    parts.append("\n## Errors\n\n| Error | |\n| --- | --- |\n")
    for node in ast.parse((CLIENT / "errors.py").read_text()).body:
        if isinstance(node, ast.ClassDef) and node.bases:
            parts.append(f"| `{node.name}` | {_about(node)} |\n")
    return "".join(parts)


def _members(node: ast.ClassDef, name: str, instance: str, source: str) -> Iterator[str]:
    """Yield a table of the properties of a class, and a section for each public method."""
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    properties = [each for each in methods if each.decorator_list]
    if properties:
        yield "\n| | |\n| --- | --- |\n"
        yield from (f"| `{instance}.{each.name}` | {_about(each)} |\n" for each in properties)
    for method in methods:
        if node.name == name == "Client" and method.name == "__init__":
            yield f"\n{_call(method, name, source)}\n{_about(method)}\n"
        elif not (method in properties or method.name in HIDDEN or method.name[0] == "_"):
            yield f"\n### {name}.{method.name}\n\n"
            yield f"{_call(method, f'{instance}.{method.name}', source)}\n{_about(method)}\n"


def _call(method: ast.FunctionDef, name: str, source: str) -> str:
    """Return a block with the call of a method, in the lines of the source."""
    lines = source.splitlines()[method.lineno - 1 : method.body[0].lineno - 1]
    text = textwrap.dedent("\n".join(lines)).replace(f"def {method.name}", name, 1)
    text = re.sub(r"(\n +)?\bself(, |,(?=\n)|(?=\)))", "", text, count=1)
    text = re.sub(r"(?<!,)\n\) ->", ") ->", text)
    returned = re.sub(r'-> "?(.*?)"?:$', r"-> \1", text).removesuffix(" -> None")
    return f"```text\n{returned}\n```\n"


def _about(node: ast.ClassDef | ast.FunctionDef) -> str:
    text = ast.get_docstring(node) or ""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
