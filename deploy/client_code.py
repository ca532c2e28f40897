"""Write the generated files of the Python client: `python -m deploy.client_code` (`make client`).

`models.py` and `operations.py` come from the gateway's OpenAPI document. `synchronous/` is
`asynchronous/` without `async` and `await`, so that each request is described once. It also writes
docs/python-reference.md (`deploy/client_reference.py`). `schema.json` and `recipes.json` are
what the command line knows of run configs without a gateway.
"""

import json
import keyword
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from deploy import client_reference
from deploy.openapi_document import document
from recipes import list_chains, list_recipes
from services.contracts.config import RunConfig

CLIENT = Path(__file__).resolve().parents[1] / "headrace"
NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
ANSWERS = {"text/event-stream": "EventStream", "text/html": "str", "text/plain": "str"}
FILES = ("file", "data")
"""Fields of forms that are files."""
REPEATABLE = {
    *("datasets_create", "runs_preview", "chat_completions_create", "verifiers_score"),
    *("session_chat_completions_create", "sessions_reward", "sessions_end", "groups_release"),
}
"""Operations without an Idempotency-Key that may be sent again after a lost answer: they make
nothing, or nothing twice."""
MODEL_NAME = r"\b(?!Any\b|Literal\b|None\b)[A-Z]\w*"
"""A model's name in the type of a field."""
LEAST_FIELDS = 6
"""A model with fewer fields is no base: that others have its fields may be chance."""
HEADER = """\"\"\"{about} `make client` makes this file (deploy/client_code.py).\"\"\"
# ruff: noqa: E501, UP028

"""
SYNCHRONOUS = (
    # What runs in a thread for the asynchronous client runs at once here.
    (r"\bawait asyncio\.to_thread\(([\w.]+), ", r"\1("),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basyncio\b", "time"),
    (r"\bheadrace\.asynchronous\b", "headrace.synchronous"),
    (r"\b__a(iter|enter|exit)__\b", r"__\1__"),
    (r"\ba(close|iter_lines|iter_bytes|read)\b", r"\1"),
)


def annotation(schema: dict[str, Any]) -> str:
    """Return the Python type of a schema."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if values := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return f"Literal[{', '.join(map(repr, values))}]"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(dict.fromkeys(map(annotation, choices)))
    kind = schema.get("type")
    if kind == "array" and "prefixItems" in schema:
        return f"tuple[{', '.join(map(annotation, schema['prefixItems']))}]"
    if kind == "array":
        return f"list[{annotation(schema.get('items', {}))}]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {annotation(values) if isinstance(values, dict) else 'Any'}]"
    if schema.get("format") == "binary":
        return "bytes"
    return NAMES.get(str(kind), "Any")


def quoted(text: str, indent: str) -> str:
    """Return `text` as a docstring."""
    text = text.strip().replace("\\", "\\\\").replace('"""', "'''")
    text = text + (" " if text.endswith('"') else "")
    return f'{indent}"""{text}"""\n' if text else ""


def safe(name: str) -> str:
    """Return `name` as a Python name."""
    name = name.replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def optional(kind: str) -> str:
    """Return an annotation that also takes None."""
    return kind if "None" in kind.split(" | ") else f"{kind} | None"


def models(schemas: dict[str, Any]) -> str:
    """Return the source of a model for each schema. A model that has all fields of another one is
    its subclass."""
    source = HEADER.format(about="What the gateway's API takes and answers.")
    source += "from __future__ import annotations\n\nfrom typing import Any, Literal, TypeAlias\n\n"
    source += "from pydantic import Field\n\nfrom headrace.model import Model\n\n"
    fields: dict[str, list[str]] = {}
    aliases = ""
    for name, schema in schemas.items():
        if name.startswith("Body_"):
            continue
        if "properties" in schema or schema.get("additionalProperties"):
            required = schema.get("required", ())
            fields[name] = [
                field_of(key, field, key in required, schemas)
                for key, field in schema.get("properties", {}).items()
            ]
        else:
            about = quoted(schema.get("description", ""), "")
            aliases += f"{name}: TypeAlias = {annotation(schema)}\n{about}\n"
    # A base has fewer fields than its subclasses, so it stands before them.
    for name, lines in sorted(fields.items(), key=lambda item: (len(item[1]), item[0])):
        base = base_of(name, fields)
        added = [line for line in lines if line not in fields.get(base, ())] or ["    pass"]
        about = quoted(schemas[name].get("description", ""), "    ")
        source += f"class {name}({base}):\n{about}\n{''.join(added)}\n\n"
    return source + aliases


def base_of(name: str, fields: dict[str, list[str]]) -> str:
    """Return the model of which `name` is a subclass: the largest whose fields `name` has too."""
    bases = [
        (len(lines), other)
        for other, lines in fields.items()
        if len(lines) >= LEAST_FIELDS and set(lines) < set(fields[name])
    ]
    return max(bases)[1] if bases else "Model"


def field_of(key: str, schema: dict[str, Any], is_required: bool, schemas: dict[str, Any]) -> str:
    """Return the lines of a field of a model."""
    kind, default = annotation(schema), schema.get("default")
    if not is_required and default is None and "x-default" not in schema:
        # OpenAPI leaves out the default of a list or a dictionary, which is an empty one.
        default = {"array": [], "object": {}}.get(schema.get("type", ""))
        if default is None and not {"None", "Any"} & set(kind.split(" | ")):
            kind += " | None"
    if isinstance(default, list) and kind.startswith("tuple"):
        default = tuple(default)
    value = "" if is_required else f" = {default!r}"
    if "x-default" in schema:
        value = f" = Field(default_factory={made(schema, schemas)})"
    if safe(key) != key:
        value = f" = Field({'' if is_required else f'default={default!r}, '}alias={key!r})"
    return f"    {safe(key)}: {kind}{value}\n{quoted(schema.get('description', ''), '    ')}"


def made(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return the source of a function that makes the default of a field, which is a model."""
    default = schema["x-default"]
    for name in re.findall(MODEL_NAME, annotation(schema)):
        fields = schemas[name]["properties"]
        if fields.get("type", {}).get("const") == default.get("type"):
            break
    defaults = {key: field.get("default", field.get("x-default")) for key, field in fields.items()}
    given = {key: value for key, value in default.items() if defaults.get(key) != value}
    arguments = ", ".join(f"{safe(key)}={value!r}" for key, value in given.items())
    # The model may stand below.
    return f"lambda: {name}({arguments})"


def operations(paths: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return the source of a function for each operation, which describes its request."""
    source = HEADER.format(about="Each operation of the gateway's API, as a request to send.")
    functions = "".join(
        function(path, method.upper(), operation, schemas)
        for path, methods in paths.items()
        for method, operation in methods.items()
    )
    used = sorted(set(re.findall(r"\b[A-Z]\w+", functions)) & schemas.keys())
    source += f"from typing import Any, Literal\n\nfrom headrace.models import {', '.join(used)}\n"
    return source + f"from headrace.request import EventStream, Files, Request\n\n{functions}"


def function(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return the source of the function that describes the request of an operation."""
    signature: list[str] = []
    parts: dict[str, list[str]] = {"path": [], "query": [], "header": []}
    given = operation.get("parameters", [])
    for parameter in sorted(given, key=lambda each: not each.get("required", False)):
        name = parameter["name"]
        # OpenAI's own client is the one for its lists, which filter by any key.
        if name == "Idempotency-Key" or name.endswith("[KEY]"):
            continue
        kind = annotation(parameter["schema"])
        if not parameter.get("required"):
            kind = f"{optional(kind)} = None"
        signature.append(f"{safe(name)}: {kind}")
        parts[parameter["in"]].append(f"{name!r}: {safe(name)}")
    arguments = [f"{name}={{{', '.join(values)}}}" for name, values in parts.items() if values]
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        if media == "application/json":
            kind = annotation(content["schema"])
            signature.append(f"body: {kind} | dict[str, Any]")
            arguments.append("body=body")
        elif media == "multipart/form-data":
            fields = schemas[annotation(content["schema"])]["properties"].items()
            form = {
                key: (re.sub(r"\W+", "_", key).strip("_"), optional(annotation(field)))
                for key, field in fields
                if key not in FILES
            }
            signature.append("files: Files | None = None")
            signature += [f"{name}: {kind} = None" for name, kind in form.values()]
            sent = ", ".join(f"{key!r}: {name}" for key, (name, _) in form.items())
            arguments += ["files=files", f"form={{{sent}}}"]
        else:
            signature.append("content: bytes")
            arguments.append("content=content")
    nothing = {"json": {"schema": {"type": "null"}}}
    answers = [
        ANSWERS.get(media, annotation(content.get("schema", {})) if "json" in media else "bytes")
        for status, answer in sorted(operation["responses"].items(), reverse=True)
        if status.startswith("2")
        for media, content in (answer.get("content") or nothing).items()
    ]
    answer = " | ".join(dict.fromkeys(" | ".join(answers).split(" | ")))
    if any(parameter["name"] == "Idempotency-Key" for parameter in given):
        arguments.append("is_keyed=True")
    if operation["operationId"] in REPEATABLE:
        arguments.append("is_repeatable=True")
    star = "*, " if signature else ""
    about = ". ".join(filter(None, [operation["summary"], operation.get("description", "")]))
    return (
        f"def {operation['operationId']}({star}{', '.join(signature)}) -> Request[{answer}]:\n"
        f"{quoted(about, '    ')}"
        f"    return Request({', '.join([repr(method), repr(path), answer, *arguments])})\n\n\n"
    )


def synchronous(source: str) -> str:
    """Return a module of `asynchronous/` without `async`."""
    about, _, code = source.removeprefix('"""').partition('"""\n')
    for pattern, replacement in SYNCHRONOUS:
        code = re.sub(pattern, replacement, code)
    about = about.partition("`make client`")[0].replace("asynchronous", "synchronous").strip()
    return HEADER.format(about=about) + code


def formatted(source: str, name: str) -> str:
    """Return `source` in the standard form of this project."""
    for command in (["check", "--fix", "--quiet", "--exit-zero"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", f"headrace/{name}", "-"]
        done = subprocess.run(
            ruff, input=source, capture_output=True, text=True, check=True, cwd=CLIENT.parent
        )
        source = done.stdout
    return source


def files() -> dict[str, str]:
    """Return the text of each generated file, by its name."""
    api = json.loads(document())
    schemas = api["components"]["schemas"]
    made = {
        "models.py": models(schemas),
        "operations.py": operations(api["paths"], schemas),
    }
    for file in sorted((CLIENT / "asynchronous").glob("*.py")):
        made[f"synchronous/{file.name}"] = synchronous(file.read_text())
    written = {name: formatted(source, name) for name, source in made.items()}
    texts = {"recipes": list_recipes(), "chains": list_chains()}
    known = {kind: {recipe.name: recipe.text for recipe in all} for kind, all in texts.items()}
    schema = TypeAdapter(RunConfig).json_schema()
    return written | {"recipes.json": json_lines(known), "schema.json": json_lines(schema)}


def json_lines(document: dict[str, Any]) -> str:
    """Return JSON with a line for each entry of its sections, so that a change is short."""
    parts = [f"{json.dumps(key)}: {_section(value)}" for key, value in document.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _section(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    entries = (
        f"{json.dumps(key)}: {json.dumps(inner, ensure_ascii=False)}"
        for key, inner in value.items()
    )
    return "{\n" + ",\n".join(entries) + "\n}"


if __name__ == "__main__":
    for name, source in files().items():
        (CLIENT / name).parent.mkdir(exist_ok=True)
        (CLIENT / name).write_text(source)
    client_reference.PAGE.write_text(client_reference.reference())
