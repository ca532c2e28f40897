"""The run config: the whole surface of a recipe, validated before anything starts.

One sentence under each field; defaults that work; unknown keys are refused with the nearest
known name; impossible combinations are refused with the way out. `parse_config` is the one
way in. Docs and the OpenAPI description are made from these models.
"""

from services.contracts.config.model import Model, PretrainedModel, ScratchModel
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.parsing.errors import ConfigError, parse_config
from services.contracts.config.run import RLConfig, RunConfig
from services.contracts.config.sft import SFTConfig

__all__ = [
    "Algorithm",
    "ConfigError",
    "Model",
    "PretrainedModel",
    "RLConfig",
    "RunConfig",
    "SFTConfig",
    "ScratchModel",
    "parse_config",
]
