"""The workload of `headrace bench` as its run configs define it."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench.generation import engine_options, sampling
from bench.training import PARTS
from bench.workload import generation_config, model_config, run_config
from headrace.cli.output import CliError
from recipes import find_recipe, merged
from rollout.vllm.process.options import ServerConfig, command_line
from services.contracts.config import RLConfig, SFTConfig, parse_config


def parsed(recipe: str, config: dict[str, Any]) -> Any:
    return parse_config(merged(find_recipe(recipe).config, config))


@pytest.mark.parametrize("eta", [0, 1, 4])
def test_a_run_is_the_demo_at_the_workload_of_the_benchmark(eta: int) -> None:
    config = parsed("demo_grpo", run_config("run:0123abcd", eta))
    assert isinstance(config, RLConfig)
    assert config.rollout.max_staleness == eta
    assert (config.algorithm.prompts_per_step, config.algorithm.samples_per_prompt) == (32, 8)
    assert (config.sampling.max_tokens, config.sampling.ignore_eos) == (64, True)
    assert [reward.verifier for reward in config.rewards] == ["exact"]
    assert config.evaluation is None


def test_the_model_has_room_for_the_prompt_and_64_tokens() -> None:
    config = parsed("demo_sft", model_config())
    assert isinstance(config, SFTConfig)
    assert config.model.source == "scratch"
    assert config.model.max_length == 128


def test_all_runs_can_share_one_server() -> None:
    runs = [run_config("run:0123abcd", eta) for eta in (0, 1, 4)]
    configs = [parsed("demo_grpo", run) for run in [*runs, generation_config("run:0123abcd")]]
    assert len({config.rollout.vllm.model_dump_json() for config in configs}) == 1


def test_the_offline_side_has_the_options_of_the_worker_s_server() -> None:
    vllm = parsed("demo_grpo", generation_config("run:0123abcd")).rollout.vllm
    arguments = command_line(ServerConfig(Path("weights"), vllm, "float32", "cpu"), Path("socket"))
    served = dict(itertools.pairwise(arguments))
    offline = engine_options(Path("weights"))
    assert "--enforce-eager" in arguments
    for name in ("model", "dtype", "max_model_len", "max_num_seqs", "logprobs_mode"):
        assert served[f"--{name.replace('_', '-')}"] == str(offline[name])


def test_the_offline_side_samples_as_the_worker_does() -> None:
    assert sampling() == {
        "n": 8,
        "max_tokens": 64,
        "ignore_eos": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "logprobs": 0,
        "detokenize": False,
    }


def test_a_part_that_does_not_exist_is_refused_with_those_that_do() -> None:
    from services.cli.host.bench import bench

    app = typer.Typer()
    app.command()(bench)
    refused = CliRunner().invoke(app, ["--only", "eta-2"])
    assert isinstance(refused.exception, CliError)
    assert str(refused.exception) == f"there is no part eta-2; there is {', '.join(PARTS)}"
