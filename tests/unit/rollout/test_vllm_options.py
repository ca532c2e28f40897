"""vLLM's command line and environment."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from rollout.vllm.process.options import (
    ServerConfig,
    command_line,
    environment,
    fingerprint,
    flag,
    with_memory,
)
from rollout.vllm_plugin.lora_slot import slot_for
from services.contracts.config import RLConfig, parse_config
from services.contracts.config.vllm import VLLM

MODEL = Path("/data/runs/r1/model")
SOCKET = Path("/s")


def options_of(arguments: list[str]) -> dict[str, str | None]:
    """Return the `--x y` pairs of a command line, with None for a lone `--x`."""
    found: dict[str, str | None] = {}
    for i, part in enumerate(arguments):
        if part.startswith("--"):
            after = arguments[i + 1] if i + 1 < len(arguments) else "--"
            found[part] = None if after.startswith("--") else after
    return found


def test_the_server_listens_on_its_socket_with_dummy_weights_and_the_safetensors_engine():
    options = options_of(
        command_line(ServerConfig(MODEL, VLLM(max_model_len=512), "float32", "cpu"), SOCKET)
    )

    assert options["--model"] == str(MODEL)
    assert options["--uds"] == str(SOCKET)
    assert "--port" not in options
    assert options["--load-format"] == "dummy"
    assert options["--dtype"] == "float32"
    assert options["--logprobs-mode"] == "processed_logprobs"
    assert options["--weight-transfer-config"] == '{"backend": "safetensors"}'
    assert options["--max-model-len"] == "512"


def test_tokens_are_guessed_without_a_draft_model():
    arguments = command_line(ServerConfig(MODEL, VLLM(ngram_tokens=3), "float32", "cuda"), SOCKET)
    found = json.loads(options_of(arguments)["--speculative-config"] or "")
    assert (found["method"], found["num_speculative_tokens"]) == ("ngram", 3)
    plain = command_line(ServerConfig(MODEL, VLLM(), "float32", "cpu"), SOCKET)
    assert "--speculative-config" not in plain
    with pytest.raises(ValueError, match="reports wrong log-probabilities of guessed tokens"):
        command_line(ServerConfig(MODEL, VLLM(ngram_tokens=3), "float32", "cpu"), SOCKET)


def test_a_vllm_that_takes_turns_with_the_learner_can_sleep():
    sleeps = command_line(ServerConfig(MODEL, VLLM(sleeps=True), "float32", "cuda"), SOCKET)
    assert "--enable-sleep-mode" in sleeps
    assert "--enable-sleep-mode" not in command_line(
        ServerConfig(MODEL, VLLM(), "float32", "cuda"), SOCKET
    )
    with pytest.raises(ValueError, match="build for CPUs cannot sleep"):
        command_line(ServerConfig(MODEL, VLLM(sleeps=True), "float32", "cpu"), SOCKET)
    with pytest.raises(ValidationError, match="take turns on one GPU"):
        VLLM(sleeps=True, tensor_parallel_size=2)


def test_weights_are_quantised_from_bfloat16():
    options = VLLM(quantization="fp8_per_channel")
    found = options_of(command_line(ServerConfig(MODEL, options, "float32", "cuda"), SOCKET))
    assert (found["--quantization"], found["--dtype"]) == ("fp8_per_channel", "bfloat16")
    assert "--quantization" not in command_line(
        ServerConfig(MODEL, VLLM(), "float32", "cuda"), SOCKET
    )


def adapted_model(folder: Path, rank: int) -> Path:
    """A model folder for adapters as the learner exports it, without the files that only vLLM
    reads."""
    (folder / "adapter").mkdir(parents=True)
    config = {"r": rank, "lora_alpha": 32, "target_modules": ["q_proj", "mlp.up_proj"]}
    (folder / "adapter/adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter/adapter_model.safetensors").write_text("zeros")
    return folder


@pytest.mark.parametrize(("rank", "room"), [(1, "1"), (2, "8"), (16, "16"), (200, "256")])
def test_an_adapter_is_the_policy_and_the_server_reads_the_frozen_weights(
    tmp_path: Path, rank: int, room: str
):
    model = adapted_model(tmp_path / "model", rank)
    slot = slot_for(model, tmp_path)
    assert slot is not None
    arguments = command_line(ServerConfig(model, VLLM(), "float32", "cpu"), SOCKET, slot)
    options = options_of(arguments)

    at = arguments.index("--lora-target-modules")
    assert arguments[at + 1 : at + 3] == ["q_proj", "up_proj"]
    assert "--enable-lora" in options
    assert (options["--max-lora-rank"], options["--max-loras"]) == (room, "1")
    assert (options["--load-format"], options["--served-model-name"]) == ("safetensors", "base")
    assert json.loads(options["--lora-modules"] or "") == {
        "name": "policy",
        "path": str(slot.folder),
        "base_model_name": "base",
    }


def test_a_slot_links_to_the_last_adapter(tmp_path: Path):
    slot = slot_for(adapted_model(tmp_path / "model", 4), tmp_path)
    assert slot is not None
    assert slot.weights.read_text() == "zeros"
    for version in ("1", "2"):
        (tmp_path / version).write_text(version)
        slot.put(tmp_path / version)
        assert slot.weights.read_text() == version
    assert {path.name for path in slot.folder.iterdir()} == {
        *("adapter_config.json", "adapter_model.safetensors")
    }


def test_a_model_without_an_adapter_has_no_slot(tmp_path: Path):
    assert slot_for(tmp_path, tmp_path) is None


def test_vllm_samples_in_the_type_of_the_published_weights_by_default():
    assert (
        options_of(command_line(ServerConfig(MODEL, VLLM(), "bfloat16", "cpu"), SOCKET))["--dtype"]
        == "bfloat16"
    )
    own = VLLM(dtype="float32")
    assert (
        options_of(command_line(ServerConfig(MODEL, own, "bfloat16", "cpu"), SOCKET))["--dtype"]
        == "float32"
    )


def recording() -> VLLM:
    config = {
        "model": {"path": "/m"},
        "data": {"dataset": "d"},
        "rewards": [{"verifier": "math"}],
        "rollout": {"vllm": {"extra": {"block-size": 32}}},
        "algorithm": {"router": {"replay": True}},
    }
    parsed = parse_config(config)
    assert isinstance(parsed, RLConfig)
    return parsed.served


def test_a_run_that_replays_routing_has_it_recorded():
    options = options_of(command_line(ServerConfig(MODEL, recording(), "float32", "cuda"), SOCKET))
    assert "--enable-return-routed-experts" in options
    assert options["--block-size"] == "32"


def test_the_build_for_cpus_cannot_record_routing():
    with pytest.raises(ValueError, match=r"router\.replay .* set it to false, or sample on a GPU"):
        command_line(ServerConfig(MODEL, recording(), "float32", "cpu"), SOCKET)
    # Another command may be able to do it.
    own = command_line(ServerConfig(MODEL, recording(), "float32", "cpu", "my-vllm serve"), SOCKET)
    assert "--enable-return-routed-experts" in own


def test_only_gpus_get_a_memory_share_and_only_cpus_eager_mode_and_small_blocks():
    cpu = options_of(command_line(ServerConfig(MODEL, VLLM(), "float32", "cpu"), SOCKET))
    gpu = options_of(command_line(ServerConfig(MODEL, VLLM(), "float32", "cuda"), SOCKET))

    assert "--gpu-memory-utilization" not in cpu
    assert "--enforce-eager" in cpu
    assert gpu["--gpu-memory-utilization"] == "0.9"
    assert "--enforce-eager" not in gpu
    assert cpu["--block-size"] == "32"
    assert "--block-size" not in gpu


def test_a_workers_memory_share_is_the_default_of_its_runs():
    def share(options: VLLM) -> str | None:
        arguments = command_line(
            ServerConfig(MODEL, with_memory(options, 0.4), "float32", "cuda"), SOCKET
        )
        return options_of(arguments)["--gpu-memory-utilization"]

    assert share(VLLM()) == "0.4"
    assert share(VLLM(gpu_memory_utilization=0.7)) == "0.7"


def test_options_of_the_run_reach_vllm_and_change_the_fingerprint(tmp_path: Path):
    more = {"max-logprobs": 64}
    options = options_of(
        command_line(ServerConfig(MODEL, VLLM(), "float32", "cpu", more=more), SOCKET)
    )
    assert options["--max-logprobs"] == "64"
    (tmp_path / "config.json").write_text("{}")
    plain, other = (fingerprint(tmp_path, VLLM(), "float32", m) for m in ({}, more))
    assert plain != other
    assert plain == fingerprint(tmp_path, VLLM(), "float32")


def test_extra_options_are_passed_on_in_vllms_spelling_and_win():
    extra = {"block_size": 64, "enforce-eager": False, "--seed": 3}
    arguments = command_line(ServerConfig(MODEL, VLLM(extra=extra), "float32", "cpu"), SOCKET)

    assert options_of(arguments)["--block-size"] == "64"
    assert options_of(arguments)["--seed"] == "3"
    assert "--no-enforce-eager" in arguments
    assert "--enforce-eager" not in arguments


@pytest.mark.parametrize(
    "name", ["host", "--port", "weight_transfer_config", "enable_return_routed_experts"]
)
def test_options_that_headrace_relies_on_cannot_be_overridden(name):
    with pytest.raises(ValidationError, match="extra may not set"):
        VLLM(extra={name: "x"})


def test_each_way_to_divide_a_model_makes_a_server_of_several_processes():
    assert not VLLM(extra={"data-parallel-size": 1}).several_processes
    assert VLLM(tensor_parallel_size=2).several_processes
    assert VLLM(extra={"pipeline_parallel_size": 2}).several_processes


def test_another_command_takes_the_place_of_the_stock_server():
    arguments = command_line(
        ServerConfig(MODEL, VLLM(), "float32", "cpu", "python 'my server.py' --slow"), SOCKET
    )
    assert arguments[:3] == ["python", "my server.py", "--slow"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, ["--x"]),
        (False, ["--no-x"]),
        (None, []),
        (3, ["--x", "3"]),
        (["a", "b"], ["--x", "a", "b"]),
        ({"k": 1}, ["--x", '{"k": 1}']),
    ],
)
def test_values_become_flags(value, expected):
    assert flag("x", value) == expected


def test_the_environment_keeps_what_the_operator_set_and_hides_redis():
    own = {
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": "1",
        "HEADRACE_REDIS_URL": "redis://:secret@host",
        "VLLM_SERVER_DEV_MODE": "0",
        "TMPDIR": "/var/tmp",
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    folder = Path("/tmp/headrace-vllm-1")
    env = environment(own, "cpu", 1, folder)

    assert env["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert env["VLLM_SERVER_DEV_MODE"] == "1"
    assert "HEADRACE_REDIS_URL" not in env
    assert env["TMPDIR"] == env["VLLM_RPC_BASE_PATH"] == str(folder)
    # The processes of one vLLM meet without a secret: on this host alone.
    assert env["VLLM_HOST_IP"] == "127.0.0.1"
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
    assert environment({}, "cpu", 2, folder)["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment({}, "cuda", 2, folder)
    # Products of float32 stay exact in Triton, too, unless the operator says otherwise.
    assert environment({}, "cuda", 2, folder)["TRITON_F32_DEFAULT"] == "ieee"
    assert (
        environment({"TRITON_F32_DEFAULT": "tf32"}, "cuda", 2, folder)["TRITON_F32_DEFAULT"]
        == "tf32"
    )


def test_runs_share_a_server_only_if_model_type_and_options_agree(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}" if name != "c" else '{"layers": 2}')

    one = fingerprint(tmp_path / "a", VLLM(), "float32")
    assert one == fingerprint(tmp_path / "b", VLLM(), "float32")
    assert one != fingerprint(tmp_path / "c", VLLM(), "float32")
    assert one != fingerprint(tmp_path / "a", VLLM(), "bfloat16")
    assert one != fingerprint(tmp_path / "a", VLLM(max_num_seqs=8), "float32")
