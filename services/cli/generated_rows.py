"""Rows that libraries on this machine make, for `headrace datasets gym` and `verifiers`."""

from services.datasets.generated import MAPPING, gym_rows, gym_version
from services.datasets.row_checks import DatasetError
from services.environments.playing import NoEnvironment
from services.environments.verifiers_taskset import rows_of

__all__ = ["MAPPING", "DatasetError", "NoEnvironment", "gym_rows", "gym_version", "rows_of"]
