"""Wrong usage ends a command with code 2 before anything is started."""

import pytest
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
