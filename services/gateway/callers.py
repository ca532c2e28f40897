"""Who sends a request: the role of its key, the part of the API that the key reaches, and the
project of OpenAI's API whose things it sees. Pure."""

import re
from dataclasses import dataclass, replace
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import Scope

from services.contracts.records import Role, Surface
from services.gateway.openai.errors import FINE_TUNING, POLICY, SessionProblem
from services.gateway.roles import may, needed_role
from services.http import Problem

ORGANIZATION, PROJECT = "OpenAI-Organization", "OpenAI-Project"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Caller:
    """The key that a request comes with, or whose session it comes with."""

    name: str
    """As `GET /v1/keys` lists it."""
    role: Role
    digest: str
    surface: Surface = "all"
    project: str | None = None
    """The project of its key, or of the request's header. None: it sees those of all projects."""
    organization: str | None = None
    """The organization of the request's header."""

    @classmethod
    def of(cls, scope: Scope) -> "Caller":
        """Return the caller of an authenticated request."""
        caller: Caller = scope["state"]["caller"]
        return caller

    def sees(self, project: str | None) -> bool:
        """Whether a thing of this project exists for the caller. None: a thing without project."""
        return self.project in (None, project)


def is_openai(path: str) -> bool:
    """Whether a path is of OpenAI's fine-tuning API, or asks a model."""
    return path.startswith((FINE_TUNING, *POLICY))


def with_headers(caller: Caller, path: str, headers: Headers) -> Caller:
    """Return the caller with the organization and the project that the headers of OpenAI's clients
    name. Raises Problem."""
    if not is_openai(path):
        return caller
    organization, project = _named(headers, ORGANIZATION), _named(headers, PROJECT)
    if project is not None and caller.project not in (None, project):
        raise SessionProblem(
            HTTPStatus.UNAUTHORIZED,
            f"{PROJECT}: the key {caller.name!r} is of project {caller.project!r}, not "
            f"{project!r}: leave the header out, or use that project's key",
            PROJECT,
            "mismatched_project",
        )
    return replace(caller, project=project or caller.project, organization=organization)


def _named(headers: Headers, name: str) -> str | None:
    value = headers.get(name) or None
    if value is not None and not NAME.fullmatch(value):
        raise SessionProblem(
            HTTPStatus.BAD_REQUEST,
            f"{name}: must have 1 to 64 letters, digits, '_', '-' and '.', and begin with a letter "
            f"or digit, not {value[:80]!r}",
            name,
        )
    return value


def refusal_of(caller: Caller, method: str, path: str) -> Problem | None:
    """Return a 403 that says which key is needed, or None if the caller's key is enough."""
    if caller.surface == "openai" and not is_openai(path):
        return Problem(
            HTTPStatus.FORBIDDEN,
            f"{method} {path}: the key {caller.name!r} is limited to {FINE_TUNING} and the calls "
            "that ask a model. An admin makes a key for the rest: `headrace keys add NAME`",
        )
    needed = needed_role(method, path)
    if may(caller.role, needed):
        return None
    return Problem(
        HTTPStatus.FORBIDDEN,
        f"{method} {path} needs a key with the role {needed}; the key {caller.name!r} has the role "
        f"{caller.role}. An admin makes one: `headrace keys add NAME --role {needed}`",
    )
