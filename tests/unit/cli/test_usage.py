"""Wrong usage ends a command with code 2 before anything is started."""

from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from services.cli.main import root
from services.cli.output import CliError


@pytest.mark.parametrize("flag", ["--only", "--without"])
def test_an_unknown_part_ends_the_command_with_code_2(flag: str) -> None:
    result = CliRunner().invoke(root, ["up", flag, "gateway,lerner"])
    assert isinstance(result.exception, CliError)
    assert result.exception.code == 2
    assert result.exception.message.startswith("unknown part lerner: the parts are gateway,")


@pytest.mark.parametrize("value", ["{a: 1, a: 2}", "[1"])
def test_a_task_whose_setting_is_no_value_or_has_a_key_twice_is_not_made(value: str) -> None:
    result = CliRunner().invoke(root, ["datasets", "gym", "chain_sum", "--set", f"terms={value}"])
    assert isinstance(result.exception, CliError)
    assert result.exception.message.startswith(f"--set terms: {value!r} is not a YAML value")


def test_every_command_takes_json_but_those_of_which_the_readme_says_so() -> None:
    def without(command: Any, name: str) -> list[str]:
        if hasattr(command, "commands"):
            found = [without(one, f"{name} {word}") for word, one in command.commands.items()]
            return [line for lines in found for line in lines]
        options = [option for one in command.params for option in one.opts]
        return [] if "--json" in options else [name.strip()]

    assert without(get_command(root), "") == ["up", "keys link", "keys revoke"]
