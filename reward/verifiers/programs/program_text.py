"""Finds the program in an answer. Pure, linear time."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from reward.verifiers.base import Message
from reward.verifiers.programs.code_tests import Suite, with_body

# A fence may be in an item of a list, or in a quotation. Two marks in one line make no block.
_FENCE = re.compile(
    r"(?P<indent>[ \t]*(?:>[ \t]*|(?:[-*+]|\d{1,9}[.)])[ \t]+)*)"
    r"(?:(?P<ticks>`{3,})(?P<info>[^`]*)|(?P<tildes>~{3,})(?P<about>.*))$"
)
# Models also open a block at the end of a line of text, or of an `<answer>` tag.
_LATE_FENCE = re.compile(
    r"(?<!`)(?P<ticks>`{3,})[ \t]*(?P<info>(?:python3?|py)\s*)$", re.IGNORECASE
)
_BARE_FENCE = re.compile(r"^(?:`{3,}|~{3,})[ \t\r]*$", re.MULTILINE)
_TAG = re.compile(r"[ \t]*([\w+-]*)")
_READS = re.compile(r"\binput\s*\(|\bstdin\b|\bopen\s*\(\s*0\b")
_PYTHON = ("python", "python3", "py")
_MOST_INDENTED = 3
"""Columns by which CommonMark lets a closing fence be further in than the opening fence."""


class Program(NamedTuple):
    """A program, and its end in the answer, in characters."""

    source: str
    end: int


class _Block(NamedTuple):
    tag: str
    source: str
    end: int


def find_program(answer: str, tests: Suite) -> Program:
    """Return the program in an answer: the last block of Python, or the last block without a tag,
    or the last block that is Python under another tag, or the `<answer>`, or the whole answer.

    Blocks of expected output, of comments, and of examples that use another block's definitions do
    not replace a program. The program continues the prompt of `tests`, if there is one.
    """
    blocks = [*_blocks(answer)]
    # A block of Markdown, such as of four backticks, holds the blocks of a whole answer.
    wrapped = [_blocks(block.source) for block in blocks if block.tag in ("markdown", "md")]
    blocks += [block._replace(end=len(answer)) for inner in wrapped for block in inner]
    is_tagged = any(block.tag in _PYTHON for block in blocks)
    program = (None if is_tagged else _begun(answer, tests)) or _chosen(blocks, tests)
    code, end = (program.source, program.end) if program else _tagged(answer)
    prompt = tests.prompt
    if not code.strip() or not prompt:
        return Program(code, end)
    if defines(tests.entry_point, prompt) and not defines(tests.entry_point, code):
        return Program(prompt + code, end)
    # A function that is written out also needs the prompt's imports and helpers.
    return Program(f"{with_body(prompt)}\n{code}", end)


def defines(name: str, code: str) -> bool:
    """Tell whether `code` defines the function `name`, also as a lambda, or a method of that
    name."""
    name = re.escape(name)
    head = rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{name}\b|^{name}[ \t]*=[ \t]*lambda\b"
    return bool(name) and re.search(head, code, re.MULTILINE) is not None


def with_prompt(tests: Suite, prompt: str | list[Message]) -> Suite:
    """Return `tests` with the policy's prompt (in a chat, the last message). The prompt must be
    Python that begins the function under test, and the reference must lack a prompt."""
    text = prompt if isinstance(prompt, str) else prompt[-1].get("content") if prompt else ""
    if tests.prompt or not isinstance(text, str) or not defines(tests.entry_point, text):
        return tests
    return tests._replace(prompt=text) if _parsed(with_body(text)) is not None else tests


def _chosen(blocks: list[_Block], tests: Suite) -> _Block | None:
    candidates = [block for block in blocks if block.tag in _PYTHON]
    candidates = candidates or [block for block in blocks if not block.tag]
    candidates = candidates or [block for block in blocks if _parsed(block.source)]
    # Take the last block of the best kind.
    several = candidates if len(candidates) > 1 else []
    whole = _without_examples(several)
    is_asked = any(case.stdin for case in tests.cases)
    kinds = [
        [block for block in candidates if defines(tests.entry_point, block.source)],
        [block for block in whole if is_asked and _READS.search(block.source)],
        [block for block in whole if _acts(block.source)],
        [block for block in several if _acts(block.source, ast.Assign)],
        candidates,
    ]
    return next((kind[-1] for kind in kinds if kind), None)


def _without_examples(blocks: list[_Block]) -> list[_Block]:
    """Return `blocks` without the blocks that use a function or class of another block."""
    trees = [_parsed(block.source) for block in blocks]
    defined = [_definitions(tree) for tree in trees]
    names = set().union(*defined)
    return [
        block
        for block, tree, definitions in zip(blocks, trees, defined, strict=True)
        if definitions or tree is None or not (_used(tree) & names)
    ]


def _definitions(tree: ast.Module | None) -> set[str]:
    names: set[str] = set()
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


def _used(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _acts(code: str, *others: type[ast.stmt]) -> bool:
    """Tell whether `code` is Python that does more than name constants and call functions, or has a
    statement of the kinds `others`. Output such as `Sum: 7` and `n = 7` is Python too."""
    tree = _parsed(code)
    return tree is not None and any(
        isinstance(node, others) or not _may_be_output(node) for node in tree.body
    )


def _may_be_output(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.AnnAssign) or (
        isinstance(node, ast.Expr) and not _prints(node.value)
    )


def _prints(node: ast.expr) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == "print"


def _parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _begun(answer: str, tests: Suite) -> Program | None:
    """Return the program before the first fence, if the prompt has opened its block: then the fence
    closes it. Return None for prose, and for values and calls, which may be output."""
    fence = _BARE_FENCE.search(answer)
    code = answer[: fence.start()] if fence else ""
    begins = not defines(tests.entry_point, code) and defines(tests.entry_point, tests.prompt)
    if not code.strip() or not _acts(tests.prompt + code if begins else code):
        return None
    return Program(code, len(code))


def _tagged(answer: str) -> tuple[str, int]:
    """Return the content of the last `<answer>` and its end. Without such a tag, return the whole
    answer and its end."""
    before, opening, rest = answer.rpartition("<answer>")
    content, closing, _ = rest.partition("</answer>")
    if not opening or not closing:
        return answer, len(answer)
    return content.lstrip("\r\n"), len(before) + len(opening) + len(content)


def _blocks(text: str) -> Iterator[_Block]:
    """Return the blocks between fences of three or more backticks or tildes. The last block may
    lack its closing fence. A fence with a tag also closes the block before it. Lines lose the
    indentation of their fence."""
    mark = indent = tag = ""
    content: list[str] = []
    at = 0
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        fence = _FENCE.match(line.rstrip("\r\n"))
        late = _LATE_FENCE.search(line) if not fence and not mark else None
        ticks = (fence["ticks"] or fence["tildes"]) if fence else late["ticks"] if late else ""
        about = (fence["info"] or fence["about"] or "") if fence else late["info"] if late else ""
        info = _TAG.match(about)
        opening = bool(info and info[1])
        depth = len(fence["indent"]) - len(indent) if fence else 0
        closes = mark and ticks.startswith(mark) and depth <= _MOST_INDENTED
        if closes:
            yield _block(tag, content, at, "" if not opening else mark)
            mark = ""
        # Text that was cut off ends with this line.
        opens = ticks and line.endswith("\n") and (opening if closes else not mark)
        if opens:
            mark, indent, content = ticks, fence["indent"] if fence else "", []
            tag = info[1].lower() if info else ""
        elif mark:
            content.append(_without(indent, line))
        at += len(line)
    if mark:
        yield _block(tag, content, at, mark)


def _block(tag: str, lines: list[str], end: int, unclosed: str) -> _Block:
    """Return a block. `unclosed`: the mark that closes it, if no line of its own does. Then the
    mark may be at the end of a line of code."""
    last = (n for n, line in enumerate(lines) if unclosed and line.rstrip().endswith(unclosed))
    cut = next(last, None)
    if cut is None:
        return _Block(tag, "".join(lines), end)
    end -= sum(map(len, lines[cut + 1 :]))
    return _Block(tag, "".join(lines[:cut]) + lines[cut].rstrip().rstrip(unclosed[0]), end)


def _without(indent: str, line: str) -> str:
    """Return a line of a block without the indentation of the block's fence."""
    for _ in range(indent.count(">")):
        line, indent = (re.sub(r"^[ \t]*>[ \t]?", "", text) for text in (line, indent))
    blanks = len(line) - len(line.lstrip(" \t"))
    return line[min(blanks, len(indent)) :]
