"""Datasets that a config names by their place on the hub: `hf://org/name/config/split`."""

from typing import Any

from headrace.config_keys import dataset_names, with_value
from services.datasets import ColumnMapping, DatasetError
from services.datasets.hub_files import PREFIX, hub_reference
from services.gateway.dependencies import Dependencies
from services.gateway.submission.dataset_creation import DatasetSource, create_from_hub
from services.gateway.submission.model_check import Problems
from services.http import Problem


async def with_hub_datasets(
    deps: Dependencies,
    raw: dict[str, Any],
    problems: Problems,
    warnings: list[str],
    *,
    may_fetch: bool,
) -> dict[str, Any]:
    """Return `raw` with the datasets' ids in place of their names on the hub. A dataset that was
    fetched before is taken as it is; others are fetched now if that is allowed: a preview makes
    nothing, so a key that only reads may ask for it. `warnings` say what was fetched."""
    for key, name in dataset_names(raw).items():
        if not name.startswith(PREFIX):
            continue
        try:
            reference = hub_reference(name)
            records = await deps.store.datasets.list()
            fetched = [each for each in records if reference.is_met_by(each.source)]
            if not (fetched or may_fetch):
                raise DatasetError(
                    f"{name} is not here: fetch it with `headrace datasets add {name}`"
                )
            asked = DatasetSource(None, None, ColumnMapping(), None, None)
            record = fetched[0] if fetched else await create_from_hub(deps, None, reference, asked)
        except (DatasetError, Problem) as error:
            problems.append((key, str(error)))
            continue
        assert record is not None
        if not fetched:
            warnings.append(
                f"{key}: {name} was fetched from the hub now, as the dataset {record.name!r} of "
                f"{record.rows:,} rows"
            )
        raw = with_value(raw, key, record.id)
    return raw
