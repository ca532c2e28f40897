"""The base of the models."""

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A part of a request or an answer. It keeps the fields of a newer gateway."""

    model_config = ConfigDict(
        extra="allow", populate_by_name=True, protected_namespaces=(), serialize_by_alias=True
    )
