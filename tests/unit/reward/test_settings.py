"""Settings of judges, teachers and reward models in the reward service."""

import pytest
from pydantic import SecretStr, ValidationError

from reward.models.wire import ModelOptions
from reward.remote_endpoints import Endpoint
from reward.settings import RewardSettings


def test_names_stand_for_urls_folders_and_keys() -> None:
    settings = RewardSettings(
        verifiers=["my.module:Mine", "haiku=http://haiku:9000/v1/score"],
        judges=["strict=https://judge:8000/v1/"],
        reward_models=["near=/models/rm", "far=http://rm:8000"],
        reward_model_max_tokens=512,
        endpoint_keys={"strict": SecretStr("k")},
    )

    assert settings.verifier_classes == ["my.module:Mine"]
    assert settings.verifier_endpoints == [Endpoint("haiku", "http://haiku:9000/v1/score")]
    assert settings.judge_endpoints == {"strict": Endpoint("strict", "https://judge:8000/v1", "k")}
    assert settings.model_places == {
        "near": ModelOptions("/models/rm", max_tokens=512),
        "far": Endpoint("far", "http://rm:8000"),
    }


def test_models_that_are_loaded_here_take_the_gpus_in_turn() -> None:
    settings = RewardSettings(
        reward_models=["a=/models/a", "far=http://rm:8000", "b=/models/b", "c=/models/c"],
        reward_gpus="2, GPU-7f",
    )

    loaded = {
        n: one.gpu for n, one in settings.model_places.items() if isinstance(one, ModelOptions)
    }
    assert loaded == {"a": "2", "b": "GPU-7f", "c": "2"}


@pytest.mark.parametrize(
    ("given", "classes", "endpoints"),
    [
        ('["a:A", "b=http://b"]', ["a:A"], ["b"]),
        ("a:A, b=http://b", ["a:A"], ["b"]),
        ("", [], []),
        ("a=A:B", ["a=A:B"], []),
        ('["a:A"', ['["a:A"'], []),
    ],
)
def test_the_variable_for_verifiers_takes_any_text(
    given: str, classes: list[str], endpoints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_VERIFIERS", given)

    settings = RewardSettings()

    assert settings.verifier_classes == classes
    assert [endpoint.name for endpoint in settings.verifier_endpoints] == endpoints


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Endpoint("strict", "http://judge", "secret"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"judges": ["http://judge:8000"]}, "must be name=value"),
        ({"judges": ["a=http://x", "a=http://y"]}, "'a' is given twice"),
        ({"judges": ["a=judge:8000"]}, "'a' needs a URL"),
        ({"endpoint_keys": {"b": "k"}}, "no judge, reward model, teacher or verifier is named 'b'"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RewardSettings.model_validate(given)
