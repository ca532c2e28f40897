"""Options of a run that only the operator can allow (HEADRACE_TRUST_REMOTE_CODE): code that comes
with a model, and options of vLLM that read files or import modules."""

from typing import Any

from services.contracts.config.model import PretrainedModel
from services.contracts.config.parsing.errors import ConfigError, parse_config
from services.contracts.config.run import RLConfig
from services.contracts.config.sft import SFTConfig
from services.contracts.config.vllm import HARMLESS, spelled

WAY_OUT = (
    "the operator allows it with HEADRACE_TRUST_REMOTE_CODE=1 for the gateway, the learner and the "
    "rollout workers"
)


def parse_trusted(raw: Any, trusted: bool) -> RLConfig | SFTConfig:
    """Parse a config like `parse_config`. Unless the operator allows everything (`trusted`), also
    raise ConfigError for options that only the operator can allow."""
    config = parse_config(raw)
    if not trusted and (problems := asks_for_trust(config)):
        raise ConfigError(problems)
    return config


def asks_for_trust(config: RLConfig | SFTConfig) -> list[tuple[str, str]]:
    """Key and reason for each key of `config` that needs HEADRACE_TRUST_REMOTE_CODE."""
    problems = []
    if isinstance(config.model, PretrainedModel) and config.model.trust_remote_code:
        problems.append(
            (
                "model.trust_remote_code",
                f"code that comes with models is not run here: leave it out, or {WAY_OUT}",
            )
        )
    if isinstance(config, RLConfig):
        extra = {spelled(name) for name in config.rollout.vllm.extra}
        if unknown := sorted(extra - HARMLESS):
            problems.append(
                (
                    "rollout.vllm.extra",
                    f"{', '.join(unknown)}: not among the options that neither run code nor read "
                    f"files ({', '.join(sorted(HARMLESS))}): leave it out, or {WAY_OUT}",
                )
            )
    return problems
