"""The base of the models."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A part of a request or an answer. It keeps the fields of a newer gateway."""

    model_config = ConfigDict(
        extra="allow", populate_by_name=True, protected_namespaces=(), serialize_by_alias=True
    )

    def __getitem__(self, name: str) -> Any:
        """Return a field by its name, such as a metric: `event.data["reward/mean"]`."""
        if name in type(self).model_fields or name in (self.model_extra or {}):
            return getattr(self, name)
        raise KeyError(name)
