"""Versions of what crosses a process boundary."""


class SchemaMismatch(ValueError):
    """The bytes were written by another version of Headrace."""


def require_schema(what: str, schema: int, known: int) -> None:
    """Raise SchemaMismatch unless `what` has the one schema that this process reads."""
    if schema != known:
        raise SchemaMismatch(
            f"{what} has schema {schema}, this process reads {known}: run the same version of "
            "Headrace everywhere"
        )
