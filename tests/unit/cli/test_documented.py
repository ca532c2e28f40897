"""Every `headrace …` that the documents name is a command that there is, with its options."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.main import root

ROOT = Path(__file__).resolve().parents[3]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# In backticks in a sentence, or at the beginning of a line of a block.
NAMED = re.compile(r"(?:`headrace(?=[ `])([^`]*)`|^ *(?:\.venv/bin/)?headrace(?= |$)(.*)$)", re.M)


def named_in(text: str) -> set[str]:
    """Return the arguments after `headrace`, without ellipses and comments (# or two spaces)."""
    found = ("".join(groups) for groups in NAMED.findall(text.replace("\\\n", " ")))
    return {re.split(r"  | #", one.strip())[0].replace("…", "").strip() for one in found}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_command_that_is_named_exists(file: Path) -> None:
    wrong = {}
    for command in sorted(named_in(file.read_text())):
        # An option that there is not is refused before the help is shown.
        # Arguments after `--` belong to another program.
        words = shlex.split(command.partition(" -- ")[0])
        shown = CliRunner().invoke(root, [*words, "--help"])
        if shown.exit_code != 0:
            wrong[command] = shown.output
    assert wrong == {}


def test_commands_are_found_in_sentences_and_in_blocks() -> None:
    text = """
To see `headrace logs learner -f`, or `headrace submit … --pool big`:

```
make up                        # headrace nothing
.venv/bin/headrace up --help   # ports
headrace submit grpo \\
  --set a=b
```

    headrace bench --quick     in less time
"""
    assert named_in(text) == {
        "logs learner -f",
        "submit  --pool big",
        "up --help",
        "submit grpo",
        "bench --quick",
    }
