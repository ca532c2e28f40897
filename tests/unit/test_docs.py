"""Names in the documents exist in the code: metrics, dependencies, files, headings."""

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from reward.metrics import Metrics
from services.contracts.records import PoolLoad, RunRecord, RunState, WorkerRecord
from services.gateway.routes.operation.prometheus import Scrape
from services.store.keys import POOL_PARTS, RUN_PARTS

ROOT = Path(__file__).resolve().parents[2]
# A metric's name: a group and a name, either of which may have a part that varies.
METRIC = re.compile(r"[a-z]+(/[a-z_*]+)+")


EVALUATED = (
    ("services/evaluations/outcome.py", "_figures"),
    ("learner/coordinate/evaluations.py", "_figures"),
)


def documented() -> set[str]:
    """The names in the first column of docs/metrics.md's tables; what varies (`D`, `VERIFIER`) is
    written in capitals there, and `*` here."""
    rows = re.findall(r"^\| `([^`|]+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.M)
    assert sorted(rows) == sorted(set(rows)), "a name is listed twice"
    return {re.sub(r"[A-Z]+", "*", name) for name in rows}


def learner_metrics() -> set[str]:
    """Every name that the learner's code writes down as a key of a metrics row."""
    files = (ROOT / "learner").rglob("*.py")
    keys = {key for file in files for key in written_keys(ast.parse(file.read_text()))}
    return {key for key in keys if METRIC.fullmatch(key)}


def written_keys(tree: ast.AST) -> Iterator[str]:
    """The keys of dictionaries, and of assignments to `x["key"]`; f-strings with `*` for what is
    filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            yield from (name for key in node.keys if (name := pattern(key)))
        elif isinstance(node, ast.DictComp):
            yield from filter(None, [pattern(node.key)])
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield from filter(None, [pattern(node.slice)])


def pattern(node: ast.AST | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(pattern(part) or "*" for part in node.values)
    return ""


def returned_keys(file: str, function: str) -> set[str]:
    """The keys of the dictionaries in one function."""
    tree = ast.parse((ROOT / file).read_text())
    found = (n for n in ast.walk(tree) if getattr(n, "name", "") == function)
    return {key for node in found for key in written_keys(node)}


def test_every_metric_of_the_learner_is_documented_and_no_other_is() -> None:
    emitted = learner_metrics() - {"evaluation/*"}
    emitted |= {
        f"evaluation/{key}" for file, function in EVALUATED for key in returned_keys(file, function)
    }
    emitted |= {
        key for key in returned_keys("learner/coordinate/step_report.py", "row") if "/" not in key
    } - {"message"}

    listed = {name for name in documented() if not name.startswith("headrace_")}

    assert emitted - listed == set(), "add these to docs/metrics.md"
    assert listed - emitted == set(), "no code writes these any more"


def test_every_prometheus_metric_is_documented_and_no_other_is() -> None:
    run = RunRecord(
        id="9f3a", name="a", pool="p", kind="rl", state=RunState.RUNNING, config={}, created=0.0,
        metrics={"reward/pass_at_8": 0.5},
    )  # fmt: skip
    worker = WorkerRecord(id="w", pool="p", host="h", pid=1, state="idle")
    pool = PoolLoad(pool="p", run="9f3a", queued=0, workers=1, groups_in_flight=0, groups_wanted=0)
    gateway = {family.name for family in Scrape(True, [run], [run], [worker], [pool]).collect()}
    reward = {family.name for family in Metrics().registry.collect()} | watched()

    listed = {stem(name) for name in documented() if name.startswith("headrace_")}

    assert "headrace_reward_pass_at_8" in gateway
    emitted = {stem(name) for name in gateway - {"headrace_reward_pass_at_8"} | reward}
    assert emitted - listed == set(), "add these to docs/metrics.md"
    assert listed - emitted == set(), "no code exports these any more"


def stem(name: str) -> str:
    """A counter's name without the ending that its text form has."""
    return name.removesuffix("_total")


def watched() -> set[str]:
    """The gauges that the reward service's application adds."""
    names = re.findall(r'metrics\.watch\(\s*"([a-z_]+)"', (ROOT / "reward" / "app.py").read_text())
    return {f"headrace_reward_{name}" for name in names}


def dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return {re.split(r"[\[><=!~;]", line)[0].strip() for lines in lists for line in lines}


def test_every_direct_dependency_has_a_reason_and_nothing_else_has_one() -> None:
    text = (ROOT / "docs" / "decisions.md").read_text()
    rows = re.findall(r"^\| ((?:`[a-z0-9-]+`(?:, )?)+) \| (.*) \|$", text, re.M)
    named = {name: reason for names, reason in rows for name in re.findall(r"`([^`]+)`", names)}

    assert dependencies() - named.keys() == set(), "give these a reason in docs/decisions.md"
    assert named.keys() - dependencies() == set(), "these are no direct dependencies any more"
    assert [name for name, reason in named.items() if not reason.strip()] == []


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = "headrace|services|rollout|reward|learner|recipes|deploy|tests|docs|bench"


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_links_paths_and_scripts_in_the_text_exist(file: Path) -> None:
    """Relative links with their headings; in backticks, paths that begin with a folder of the tree,
    modules of `services`, and Lua scripts by their bare name."""
    text = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.M | re.S)
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    paths = set(re.findall(rf"`((?:{PACKAGES})/(?:[\w./-]*/|[\w./-]+\.\w+|))`", text))
    modules = re.findall(r"`(services(?:\.\w+)+)`", text)
    scripts = {path.name for path in (ROOT / "services/store/lua").rglob("*.lua")}

    broken = [link for link in links if not leads_somewhere(file, link)]
    broken += [name for name in sorted(paths) if not (ROOT / name).exists()]
    broken += [name for name in modules if find_spec(name) is None]
    broken += sorted(set(re.findall(r"`(\w+\.lua)`", text)) - scripts)

    assert broken == []


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_tests_that_a_document_names_exist(file: Path) -> None:
    """`tests/FILE.py::test_name`, as pytest takes it."""
    named = re.findall(r"`(tests/[\w./]+\.py)::(\w+)", file.read_text())
    gone = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text()
    ]
    assert gone == []


PROMISING = [ROOT / "docs/security.md", ROOT / "docs/reliability.md"]


@pytest.mark.parametrize("file", PROMISING, ids=lambda file: file.name)
def test_each_promise_in_a_table_names_the_test_that_holds_it(file: Path) -> None:
    """Rows below a heading whose last cell is `test`, as `tests/FILE.py::test_name`."""
    silent, promises, rows = [], False, 0
    for line in file.read_text().splitlines():
        last = line.rstrip(" |").rpartition(" | ")[2]
        if not line.startswith("|"):
            promises = False
        elif last.lower() == "test":
            promises = True
        elif promises and not line.startswith("| ---"):
            rows += 1
            silent += [] if re.search(r"`tests/[\w/]+\.py::test_\w+`", last) else [line[:80]]
    assert rows > 20
    assert silent == []


def leads_somewhere(file: Path, link: str) -> bool:
    """Return True if the target of `link` in `file` exists, with the link's heading."""
    path, _, heading = link.partition("#")
    target = file.parent / path if path else file
    if not target.exists() or not heading:
        return target.exists()
    titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
    return heading in {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in titles}


def test_each_message_in_the_table_of_problems_is_one_that_the_code_prints() -> None:
    """A quoted message has `…` where the code fills something in."""
    section = (ROOT / "docs" / "operate.md").read_text().split("## When something goes wrong\n")[1]
    cells = re.findall(r"^\| (.*?) \|", section.partition("\n## ")[0], re.M)
    quoted = [phrase for cell in cells for phrase in re.findall(r"`([^`]+)`", cell)]
    sources = [file for name in PRINTING for file in sorted((ROOT / name).rglob("*.py"))]
    texts = [text for file in sources for text in printed_texts(ast.parse(file.read_text()))]
    texts += (ROOT / "deploy" / "setup.sh").read_text().splitlines()
    printed = {text.replace("\n", " ") for text in texts}

    gone = [
        phrase for phrase in quoted if not any(follow(phrase.split("…"), text) for text in printed)
    ]

    assert len(quoted) > 50
    assert gone == []


PRINTING = ("headrace", "services", "rollout", "reward", "learner")


def follow(parts: list[str], text: str) -> bool:
    """Return True if `text` has all parts, in their order. A regular expression takes 15 s."""
    at = 0
    for part in parts:
        if (begin := text.find(part, at)) < 0:
            return False
        at = begin + len(part)
    return True


def printed_texts(tree: ast.AST) -> Iterator[str]:
    """The texts in a module without its docstrings; `*` stands for what is filled in."""
    described = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            described.add(id(node.value))
        elif id(node) not in described and (text := pattern(node)):
            yield text


def test_every_redis_key_of_a_run_and_a_pool_is_documented_and_no_other_is() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    listed = re.findall(r"`headrace:\{(?:RUN|pool:P)\}:(\w+)`", text)
    assert sorted(listed) == sorted((*RUN_PARTS, *POOL_PARTS))


def test_the_layers_of_packages_are_documented_as_they_are_checked() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("Imports point one way.")[2]
    listed = section.split("```")[1].split("\n")[1:-1]
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    checked = next(one["layers"] for one in linter["contracts"] if one["id"] == "layers")
    assert listed == checked


def test_the_readme_leads_to_every_document() -> None:
    readme = (ROOT / "README.md").read_text()
    for document in sorted((ROOT / "docs").glob("*.md")):
        assert f"(docs/{document.name})" in readme, document.name
