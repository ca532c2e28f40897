"""The process in a sandbox: a script, a program that a test calls, or that test.

The program and its test are two processes in two sandboxes, with a socket between them. Only the
test's process reports the outcome, on a descriptor that the program lacks.
"""

import ast
import builtins
import contextlib
import importlib
import json
import linecache
import os
import sys
import traceback
from types import ModuleType
from typing import Any, NoReturn

from reward.sandbox.checker_peer import CheckerPeer
from reward.sandbox.checker_source import (
    ALIASES,
    Used,
    caught,
    compares_identity,
    copied_classes,
    effect,
    judges,
    of_a_library,
    used_names,
    uses_nan,
)
from reward.sandbox.leetcode_nodes import pass_nodes
from reward.sandbox.peer_protocol import Channel, EndedError, UnsendableError
from reward.sandbox.program_peer import ProgramPeer
from reward.sandbox.provided_names import RECURSION, builtins_with_library
from reward.sandbox.stand_ins import RemoteType, ask, link_of

CHANNEL, OUTCOME = 3, 4
"""Descriptors of the socket between both ends, and of the test's outcome."""


def run(task: dict[str, Any]) -> None:
    """Run one task to its end. The process is good for no other work afterwards."""
    # Programs may read and print integers of any length, as before Python 3.11. The time counts as
    # the program's.
    sys.set_int_max_str_digits(0)
    match task["kind"]:
        case "script":
            execute(task["source"], "__main__")
        case "program":
            serve(task["source"], task["provided"], task["entry_point"])
        case "test":
            Test(task).run()


def execute(source: str, name: str, provided: bool = False) -> dict[str, Any]:
    """Run `source` as the module `name`, as `python solution.py` does, and return its names.
    `provided`: whether the program may use names of the standard library without importing them."""
    # A file's first character may be a mark of its encoding.
    source = source.removeprefix("\ufeff")
    module = ModuleType(name)
    sys.modules[name] = module
    module.__dict__["__file__"] = "solution.py"
    if provided:
        module.__dict__["__builtins__"] = builtins_with_library(source)
        sys.setrecursionlimit(RECURSION)
    sys.argv = ["solution.py"]
    # Tracebacks quote these lines.
    linecache.cache["solution.py"] = (len(source), None, source.splitlines(True), "solution.py")
    try:
        exec(compile(source, "solution.py", "exec"), module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        _fail(error)
    return module.__dict__


def serve(source: str, provided: bool, entry_point: str) -> None:
    """Load the program, and let the test call its functions until the test has ended."""
    names = execute(source, "solution", provided)
    if provided:
        pass_nodes(names, entry_point)
    ProgramPeer(Channel(CHANNEL), names).serve_all()


def _fail(error: BaseException) -> NoReturn:
    trace = error.__traceback__
    traceback.print_exception(error.with_traceback(trace.tb_next if trace else None))
    raise SystemExit(1) from None


class Test:
    """Test code, which runs in a process of its own against functions of the program."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._peer: CheckerPeer
        self._required = ""
        """A built-in name that the test expects the program to define."""
        self._used = Used(set(), set(), set())

    def run(self) -> None:
        """Report how the test ended: `asked` once the program is involved, then the outcome."""
        try:
            names = self._prepare()
            tree = ast.parse(self._task["source"], "tests.py")
            code = compile(tree, "tests.py", "exec")
            wanted = self._wanted(names, tree)
            reason = self._unknowable(names, tree)
            self._peer = CheckerPeer(Channel(CHANNEL), caught(tree))
        except BaseException as error:
            return _say("broken", f"the test cannot be run: {_brief(error)}")
        if not wanted:
            return _say("broken", "the test uses nothing that the program could define")
        _say("asked")
        began = -1
        # From here on the program takes part, and may be the cause of any failure.
        try:
            missing = self._take(wanted, names, tree)
            if missing:
                return _say("failed", f"the program does not define {missing}")
            began = self._peer.asked
            exec(code, names)
        except EndedError:
            return _say("failed", "the program ended")
        except UnsendableError as error:
            return _say("broken", str(error))
        except BaseException as error:
            alone = self._peer.asked == began and self._to_blame(error, wanted, names)
            reason = reason or self._copied(tree, error)
            if reason and not alone and not self._peer.ended:
                return _say("broken", f"{reason}; {self._where(error)}")
            return _say("broken" if alone else "failed", self._where(error))
        return self._say_passed()

    def _say_passed(self) -> None:
        """Report the outcome of a test whose code came to its end."""
        peer = self._peer
        if peer.ended:
            return _say("failed", "the program ended")
        if peer.unsendable:
            return _say("broken", peer.unsendable)
        if peer.failure is not None:
            return _say("failed", self._where(peer.failure))
        if peer.doubt:
            return _say("broken", f"the test passes by what the program's {peer.doubt} says")
        return _say("passed")

    def _to_blame(self, error: BaseException, wanted: set[str], names: dict[str, Any]) -> bool:
        """Tell whether a test that has called nothing failed by itself.

        False if the program may have provoked it by what it defines: an error would spare the
        program the reward of 0.
        """
        entry = self._task["entry_point"]
        candidate = names.get("candidate")
        a_function = wanted == {entry} and callable(candidate) and link_of(candidate) is not None
        return isinstance(error, ImportError) or a_function

    def _unknowable(self, names: dict[str, Any], tree: ast.Module) -> str:
        """Return why a failure of this test would prove nothing: a correct program could fail here
        too. Return an empty string for most tests."""
        if does := effect(tree) or effect(ast.parse(self._task["setup"])):
            return f"the test {does}, which a program in another process cannot see"
        copied = copied_classes(self._task["prompt"], names, self._used.names)
        if copied:
            return f"the test has classes of its own by the prompt's {', '.join(sorted(copied))}"
        return "the test uses nan, which a copy does not equal" if uses_nan(tree) else ""

    def _copied(self, tree: ast.Module, error: BaseException) -> str:
        """Return why copies of values may have made the test fail."""
        line = self._line(error) or 0
        failed = isinstance(error, AssertionError) and line
        if failed and self._peer.copied and compares_identity(tree, line):
            return "the test asks for the identity of what it has a copy of"
        if self._peer.unlike:
            return f"the test compares its own {self._peer.unlike} with one of the program"
        if self._peer.replaced:
            return "the test holds a container by itself that the program has changed in another"
        source = self._task["setup"] + self._task["source"]
        if isinstance(error, RecursionError) and "setrecursionlimit" in source:
            return "the test sets the recursion limit of its own process"
        try:
            return self._peer.kept()
        except BaseException:
            return ""

    def _prepare(self) -> dict[str, Any]:
        """Return the names that a test has without the program: the names of the prompt and of the
        set-up."""
        names: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
        for source in (self._task["prompt"], self._task["setup"]):
            exec(compile(source, "setup.py", "exec"), names)
        return names

    def _wanted(self, names: dict[str, Any], tree: ast.Module) -> set[str]:
        """Return the names that the test needs from the program. Modules of the standard library
        are imported into `names` instead."""
        entry = self._task["entry_point"]
        used, modules, _ = self._used = used_names(tree)
        if entry:
            names.pop(entry, None)
            if not used & {entry, "candidate"}:
                return set()
        unknown = used - names.keys() - set(dir(builtins)) - {entry, "candidate"}
        for name in sorted(modules & unknown & ALIASES.keys()):
            with contextlib.suppress(ImportError):
                names[name] = importlib.import_module(ALIASES[name])
                unknown.remove(name)
        modules &= unknown & sys.stdlib_module_names
        names.update({name: importlib.import_module(name) for name in modules})
        wanted = {*(unknown - modules), *([entry] if entry else [])}
        if not wanted and len(used) == 1 and used <= set(dir(builtins)):
            # The function under test has the name of a built-in function, as MBPP's `sum`.
            self._required = min(used)
            return used
        return wanted

    def _take(self, wanted: set[str], names: dict[str, Any], tree: ast.Module) -> str:
        """Add the program's definitions to `names`. Return a required name that the program
        lacks."""
        entry = self._task["entry_point"]
        asked = wanted | ({"Solution"} - names.keys())
        answer = dict(self._peer.ask("names", sorted(asked)))
        # Another name would replace a built-in function or a module in the test.
        definitions = {name: value for name, value in answer.items() if name in asked}
        if self._required not in {"", *definitions}:
            return self._required
        if entry:
            if entry not in definitions and "Solution" in definitions:
                definitions[entry] = getattr(definitions["Solution"](), entry)
            if entry not in definitions:
                return str(entry)
            definitions["candidate"] = definitions[entry]
        for name, value in definitions.items():
            # By PEP 8 a capital begins a class, and objects that the test makes are its own. The
            # methods of `Solution` return answers instead, even another `Solution`.
            capital = name[:1].isupper() and name != "Solution"
            if capital and isinstance(value, RemoteType) and value._link:
                value._link.made = True
        self._look_at_judges(definitions, wanted, tree)
        names.update(definitions)
        return ""

    def _look_at_judges(
        self, definitions: dict[str, Any], wanted: set[str], tree: ast.Module
    ) -> None:
        """Replace judging functions that the test forgot to import. Functions of the standard
        library become the test's own in `definitions`. If the program defines its own under such a
        name, the verdict is in doubt."""
        entry = self._task["entry_point"]
        known = {name: of_a_library(name) for name in wanted - self._used.local}
        tested = (
            {entry, "candidate"}
            if entry
            else {n for n, original in known.items() if original is None}
        )
        for name in sorted(definitions.keys() & known.keys() & judges(tree, tested)):
            library, given = known[name], definitions[name]
            if library is None and (not entry or name[:1].isupper()):
                continue
            if library is not None and (given is library or _module(given) == _module(library)):
                definitions[name] = library
            else:
                self._peer.doubt = self._peer.doubt or name

    def _line(self, error: BaseException) -> int | None:
        frames = traceback.extract_tb(error.__traceback__)
        at = [frame.lineno for frame in frames if frame.filename == "tests.py"]
        return at[-1] if at else None

    def _where(self, error: BaseException) -> str:
        lines, at = self._task["source"].splitlines(), self._line(error)
        line = lines[at - 1].strip() if at and at <= len(lines) else ""
        return f"{_brief(error)} at: {line}" if line else _brief(error)


def _module(value: Any) -> Any:
    if link_of(value) is None:
        return getattr(value, "__module__", None)
    return ask(value, "getattr", "__module__")


def _brief(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:300].rstrip(": ")
    except EndedError:
        # The text of the program's own exceptions is in the program.
        return type(error).__name__


def _say(outcome: str, detail: str = "") -> None:
    os.write(OUTCOME, json.dumps([outcome, detail]).encode() + b"\n")
