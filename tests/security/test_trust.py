"""Code that comes with a model runs only where the operator allows it, whatever a run asks for."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from rollout.settings import RolloutSettings
from rollout.worker_supervisor import WorkerSupervisor
from services.contracts.config import ConfigError, parse_config
from services.contracts.config.trust import parse_trusted
from services.contracts.config.vllm import SWITCHES, VALUES
from services.contracts.records import RunRecord, RunState
from services.settings import Settings
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, RedisServer, problems, upload
from tests.security.hostile_models import good_model

TRUSTED = "model.trust_remote_code"
EXTRA = "rollout.vllm.extra"


def config(path: object = "org/name", extra: Any = None, **model: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(path), **model},
        "data": {"dataset": "sums"},
        "rewards": [{"verifier": "math"}],
        "rollout": {"vllm": {"extra": extra or {}, "max_model_len": 64}},
        "sampling": {"max_tokens": 8},
    }


REFUSED = [
    pytest.param(config(trust_remote_code=True), TRUSTED, id="code of the model"),
    *(
        pytest.param(config(extra={name: value}), EXTRA, id=name)
        for name, value in {
            "trust-remote-code": True,
            "trust_remote_code": True,
            "trust-remote": True,
            "--io-processor-plugin": "os",
            "worker-extension-cls": "os.system",
            "tokenizer": "/etc",
            "O3": None,
        }.items()
    ),
]


@pytest.mark.parametrize(("raw", "key"), REFUSED)
def test_what_runs_code_needs_the_operators_setting(raw: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_trusted(raw, False)
    ((path, message),) = refused.value.problems
    assert path == key
    assert "HEADRACE_TRUST_REMOTE_CODE=1" in message
    assert parse_trusted(raw, True) == parse_config(raw)


@pytest.mark.parametrize("trusted", [False, True])
def test_vllm_gets_no_chat_template_of_its_own(trusted: bool) -> None:
    with pytest.raises(ConfigError, match="Headrace renders the prompts"):
        parse_trusted(config(extra={"chat-template": "/etc/shadow"}), trusted)


@pytest.mark.parametrize("value", ["--trust-remote-code", ["--trust-remote-code"], "-x"])
def test_the_value_of_an_option_cannot_be_another_option(value: Any) -> None:
    with pytest.raises(ConfigError, match="begins with -, as an option does"):
        parse_trusted(config(extra={"enable-prefix-caching": value}), True)


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize(
    ("extra", "way_out"),
    [
        (
            {"enforce-eager": "false"},
            'enforce-eager is a switch: write true or false (got "false")',
        ),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching is a switch: write true or false"),
        ({"seed": [1, "/etc"]}, 'seed takes one text or number (got [1, "/etc"])'),
        ({"--tool-call-parser": True}, "--tool-call-parser takes one text or number (got true)"),
        ({"": ["/etc"]}, '"" is no name of an option: leave it out'),
        ({"seed=1 /etc": None}, '"seed=1 /etc" is no name of an option: leave it out'),
    ],
)
def test_nothing_in_extra_is_a_positional_argument(
    extra: dict[str, Any], way_out: str, trusted: bool
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_trusted(config(extra=extra), trusted)
    ((path, message),) = refused.value.problems
    assert path == EXTRA
    assert way_out in message


def test_options_that_tune_need_no_trust() -> None:
    assert not Settings().trust_remote_code
    raw = config(extra=dict.fromkeys(SWITCHES, True) | dict.fromkeys(VALUES, 1))
    assert parse_trusted(raw, False) == parse_config(raw)


def test_the_gateway_refuses_by_name_unless_its_operator_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = RedisServer(tmp_path)
    redis.start()
    asked = {"config": config(good_model(tmp_path / "model"), trust_remote_code=True)}
    answers = []
    for setting in ("0", "1"):
        gateway = GatewayProcess(
            tmp_path / setting / "data", redis.url, HEADRACE_TRUST_REMOTE_CODE=setting
        )
        with httpx.Client(base_url=gateway.url, headers=gateway.headers, timeout=30) as api:
            upload(api, "sums", b'{"question": "1+1", "answer": "2"}\n' * 40)
            answers.append(api.post("/v1/runs", json=asked))
        gateway.stop()
    redis.stop()
    assert "HEADRACE_TRUST_REMOTE_CODE=1" in problems(answers[0])[TRUSTED]
    assert answers[1].status_code == 201


async def test_a_worker_refuses_what_another_gateway_let_through(tmp_path: Path) -> None:
    raw = parse_config(config(trust_remote_code=True)).model_dump(mode="json")
    run = RunRecord(
        id="r1", name="r1", pool="default", kind="rl", state=RunState.RUNNING, config=raw, created=0
    )
    settings = RolloutSettings.model_validate({"worker": "w", "data": tmp_path})
    worker = WorkerSupervisor(settings, Store.from_url("redis://127.0.0.1:1/0"))
    with pytest.raises(ConfigError, match="code that comes with models is not run here"):
        await worker._work(run, None, None, None)  # type: ignore[arg-type]
