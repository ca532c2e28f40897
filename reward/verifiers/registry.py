"""All verifiers by name: built-in ones, those of installed packages (entry-point group
`headrace.verifiers`), and those that the operator names as `package.module:Class` or by URL.

A verifier never replaces another of the same name. A verifier that cannot be loaded stays in the
registry, unavailable, with the reason, and the others run.
"""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from headrace.nearest import did_you_mean
from reward.errors import brief
from reward.sandbox.sandbox_host import SandboxOptions
from reward.verifiers.base import Item, RemoteVerifier, Verdict, Verifier, VerifierParams, broken
from reward.verifiers.math.math_verifier import MathVerifier
from reward.verifiers.plain_function import FunctionVerifier
from reward.verifiers.programs.code import CodeVerifier
from reward.verifiers.programs.sandboxed import SandboxedCodeVerifier
from reward.verifiers.tasks.countdown import CountdownVerifier
from reward.verifiers.tasks.ifeval import IFEvalVerifier
from reward.verifiers.tasks.reasoning import ReasoningGymVerifier
from reward.verifiers.text.answer_tags import FormatVerifier, XmlFormatVerifier
from reward.verifiers.text.choice import ChoiceVerifier
from reward.verifiers.text.length_and_language import (
    LanguageVerifier,
    LengthVerifier,
    RepetitionVerifier,
)
from reward.verifiers.text.structured import JsonSchemaVerifier
from reward.verifiers.text.text_comparison import ContainsVerifier, ExactVerifier, RegexVerifier
from services.contracts.wrong_values import wrong_value

GROUP = "headrace.verifiers"
MAX_PROBLEMS = 10
"""The maximum number of problems reported for one item: a request may hold as many wrong parameters
as fit into its body."""

BUILT_IN: tuple[type[Verifier[Any]], ...] = (
    MathVerifier,
    ExactVerifier,
    ChoiceVerifier,
    ContainsVerifier,
    RegexVerifier,
    JsonSchemaVerifier,
    CountdownVerifier,
    IFEvalVerifier,
    ReasoningGymVerifier,
    FormatVerifier,
    XmlFormatVerifier,
    LengthVerifier,
    RepetitionVerifier,
    LanguageVerifier,
)

AnyVerifier = Verifier[Any] | RemoteVerifier[Any]
Registry = Mapping[str, AnyVerifier]


SETTING = "HEADRACE_VERIFIERS (--verifiers)"
FORMAT = (
    "an entry is package.module:Class, /path/file.py:Class, /path/file.py:function or NAME=URL; "
    "put commas between entries, or give a JSON list"
)
_CLASS = re.compile(
    r"(?:(?P<name>[\w@-]+)=)?"
    r"(?:(?P<file>.+\.py):(?P<of_file>\w+)|(?P<module>\w+(?:\.\w+)*):(?P<of_module>\w+))"
)


class DisabledVerifier(Verifier[VerifierParams]):
    """A verifier that cannot be loaded. Nothing is scored with it."""

    description = "Cannot be used: see the notice."
    Params = VerifierParams
    available = False

    def __init__(self, name: str, reason: str) -> None:
        self.name = name  # type: ignore[misc]
        self.notice = reason

    def score(self, item: Item, params: VerifierParams) -> Verdict:
        """Implements `Verifier.score`. The service asks only available verifiers."""
        return broken(self.notice)


def build_registry(
    entries: Iterable[str] = (),
    remote: Iterable[RemoteVerifier[Any]] = (),
    sandbox: SandboxOptions | None = None,
) -> dict[str, AnyVerifier]:
    """Return all verifiers by name: the built-in ones, `remote`, installed ones, and `entries`, the
    entries of the setting that are not URLs. Those that fail to load are `DisabledVerifier`s."""
    registry: dict[str, AnyVerifier] = {kind.name: kind() for kind in BUILT_IN}
    remote = list(remote)
    if not any(isinstance(asked, SandboxedCodeVerifier) for asked in remote):
        registry[CodeVerifier.name] = CodeVerifier(sandbox)
    installed = [
        (f"entry point {point.name!r}", point.value) for point in entry_points(group=GROUP)
    ]
    loaded: list[tuple[str, str, AnyVerifier]] = [
        (SETTING, verifier.name, verifier) for verifier in remote
    ]
    loaded += [(source, path, _load(source, path)) for source, path in installed]
    loaded += [(SETTING, path, _load(SETTING, path)) for path in entries]
    for source, path, verifier in loaded:
        if verifier.name in registry:
            name = path if path not in registry else f"{path} (again)"
            reason = f"{source}: {path!r}: a verifier {verifier.name!r} exists already; rename one"
            verifier = DisabledVerifier(name, reason)
        registry[verifier.name] = verifier
    return registry


def _load(source: str, path: str) -> AnyVerifier:
    match = _CLASS.fullmatch(path)
    if match is None:
        return DisabledVerifier(path, f"{source}: {path!r} has no known form: {FORMAT}")
    try:
        module = (
            import_file(match["file"])
            if match["file"]
            else importlib.import_module(match["module"])
        )
        return verifier_of(getattr(module, match["of_file"] or match["of_module"]), match["name"])
    except Exception as error:
        return DisabledVerifier(
            path, f"{source}: {path!r} cannot be loaded: {brief(error)}; {FORMAT}"
        )


def verifier_of(value: Any, name: str | None = None) -> AnyVerifier:
    """Return the verifier that a class or a plain function of a user's is. `name`: its name instead
    of its own. Raises TypeError."""
    if inspect.isfunction(value):
        verifier: AnyVerifier = FunctionVerifier(name or value.__name__, value)
    elif isinstance(value, type) and issubclass(value, Verifier | RemoteVerifier):
        verifier = value()
        if name is not None:
            verifier.name = name  # type: ignore[misc]
    else:
        raise TypeError(
            "it is neither a function nor a class derived from Verifier or RemoteVerifier of "
            "reward.verifiers.base"
        )
    verifier.Params.model_json_schema()
    return verifier


def import_file(path: str) -> ModuleType:
    """Import the file at `path` as a module of its own. Its folder is on the path."""
    file = Path(path).expanduser().absolute()
    # Verifiers may import other modules of their folder.
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    # The module is named by its place: a file `math.py` is not the standard library's module, and
    # versions of a verifier have files of one name.
    place = re.sub(r"\W", "_", str(file.with_suffix("")))
    spec = importlib.util.spec_from_file_location(f"own_verifier_{place}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class UnusableError(ValueError):
    """A verifier cannot be used with these parameters. `problems` has pairs of a key (`.verifier`,
    `.params.strict`) and a sentence."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(message for _, message in problems))
        self.problems = problems


def usable(registry: Registry, name: str, raw: Mapping[str, Any]) -> tuple[AnyVerifier, Any]:
    """Return the verifier `name`, and `raw` as its own `Params`. Raises UnusableError."""
    verifier = registry.get(name)
    if verifier is None:
        usable_names = [known for known, verifier in registry.items() if verifier.available]
        hint = did_you_mean(name, usable_names) or f"; there is {', '.join(usable_names)}"
        lost = [
            verifier.notice
            for verifier in registry.values()
            if isinstance(verifier, DisabledVerifier)
        ]
        why = f". Not loaded: {'; '.join(lost[:MAX_PROBLEMS])}" if lost else ""
        raise UnusableError([(".verifier", f"verifier {name[:80]!r} does not exist{hint}{why}")])
    if not verifier.available:
        raise UnusableError([(".verifier", f"verifier {name!r}: {verifier.notice}")])
    try:
        params = parse_params(verifier, raw)
    except ValidationError as error:
        problems = param_problems(verifier, error)
        raise UnusableError(
            [(f".params.{key}".rstrip("."), message) for key, message in problems]
        ) from error
    except (ValueError, RecursionError) as error:
        raise UnusableError([(".params", str(error))]) from error
    if isinstance(verifier, RemoteVerifier):
        try:
            verifier.check(params)
        except ValueError as error:
            raise UnusableError([(".params", str(error))]) from error
    return verifier, params


def parse_params(verifier: AnyVerifier, raw: Mapping[str, Any]) -> Any:
    """Return `raw` as the verifier's own `Params`. Raises pydantic's ValidationError."""
    return verifier.Params.model_validate(dict(raw))


def param_problems(verifier: AnyVerifier, error: ValidationError) -> list[tuple[str, str]]:
    """Return (parameter, sentence) for each wrong parameter of an item."""
    fields = verifier.Params.model_fields.items()
    known = [field.alias or name for name, field in fields]
    problems = []
    for detail in error.errors(include_url=False)[:MAX_PROBLEMS]:
        name = ".".join(str(part) for part in detail["loc"])[:100]
        if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
            there = did_you_mean(name, known) or f"; there is {', '.join(known)}"
            problems.append((name, f"verifier {verifier.name!r} has no such parameter{there}"))
        else:
            problems.append((name, wrong_value(detail)))
    return problems
