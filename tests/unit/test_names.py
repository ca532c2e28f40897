"""One class has one name: a name in an error, a log or the API leads to one place. A variable is a
noun: what it holds can be read where it is used."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("headrace", "services", "learner", "rollout", "reward", "bench", "recipes", "deploy")

NO_NOUNS = frozenset({"one", "found", "said", "own", "told", "apart", "room", "talks"})


def test_no_public_class_name_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    # The client's models are those of the gateway's API, by design under their names.
    for folder in PRODUCT[1:]:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(places) > 500
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_variable_parameter_or_function_is_named_by_a_pronoun_or_a_participle() -> None:
    named = []
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            fields = _fields(tree)
            for node in ast.walk(tree):
                name, line = _name(node)
                if name.strip("_") in NO_NOUNS and node not in fields:
                    named.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert named == [], "say what it is: a noun of docs/concepts.md"


def _name(node: ast.AST) -> tuple[str, int]:
    """The name that `node` gives to something, or '', and its line."""
    match node:
        case ast.Name(id=name, ctx=ast.Store(), lineno=line) | ast.arg(arg=name, lineno=line):
            return name, line
        case ast.FunctionDef(name=name, lineno=line) | ast.AsyncFunctionDef(name=name, lineno=line):
            return name, line
    return "", 0


def _fields(tree: ast.AST) -> set[ast.AST]:
    """Fields of classes: their names may be those of a wire format."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {
        part.target for node in classes for part in node.body if isinstance(part, ast.AnnAssign)
    }
