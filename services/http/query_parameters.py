"""Refuses query parameters that a route does not declare, and several values for a parameter that
takes one. Both would be ignored: `?dryrun=true` would queue a real run."""

from collections.abc import Iterator
from http import HTTPStatus
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant

from headrace.nearest import did_you_mean
from headrace.wording import quoted
from services.contracts.config.parsing.type_tags import fields_of, models_of
from services.http.problems import MAX_LISTED, Problem, ProblemItem, summary


# Without `async`, FastAPI would call it in a thread, at each request.
async def refuse_unused_parameters(request: Request) -> None:
    """Raise Problem 422 if the route of `request` would ignore a part of the query."""
    given = request.query_params
    if not given:
        return
    takes_list = dict(_declared(request.scope["route"].dependant))
    problems = []
    for given_name in given:
        name = _pattern(given_name)
        if name not in takes_list:
            message = _unknown(given_name, sorted(takes_list))
        elif not takes_list[name] and (count := len(given.getlist(given_name))) > 1:
            message = f"is given {count:,} times and takes one value"
        else:
            continue
        problems.append(ProblemItem(path=f"query.{given_name}", message=message))
    if problems:
        detail = f"the request cannot be used: {summary(problems)}"
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, problems[:MAX_LISTED])


def _pattern(name: str) -> str:
    """Return the name by which a route declares a parameter: `metadata[KEY]` takes any key."""
    base, bracket, key = name.partition("[")
    return f"{base}[KEY]" if bracket and key.endswith("]") else name


def _unknown(name: str, known: list[str]) -> str:
    takes = f"known here: {', '.join(known)}" if known else "this request takes none"
    return f"unknown query parameter {quoted(name)}{did_you_mean(name, known)}; {takes}"


def _declared(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """List the query parameters of a route and of its dependencies. True: it takes a list."""
    for parameter in dependant.query_params:
        annotation = parameter.field_info.annotation
        # A model declares a parameter for each of its fields.
        if models := models_of(annotation):
            for model in models:
                for name, field in fields_of(model).items():
                    yield name, _is_list(field.annotation)
        else:
            yield parameter.alias, _is_list(annotation)
    for dependency in dependant.dependencies:
        yield from _declared(dependency)


def _is_list(annotation: Any) -> bool:
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return any(map(_is_list, get_args(annotation)))
    return get_origin(annotation) is list
