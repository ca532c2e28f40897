"""The errors of the client. All are `HeadraceError`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a request: `path` is a key of the config or a parameter."""

    path: str
    message: str


class HeadraceError(Exception):
    """A request that failed."""

    status: int | None
    """The status of HTTP; None without an answer."""
    detail: str
    """What is wrong and the way out."""
    problems: Sequence[Problem]
    """Each thing that is wrong, if the gateway lists several."""

    def __init__(
        self, detail: str, status: int | None = None, problems: Sequence[Problem] = ()
    ) -> None:
        self.detail, self.status, self.problems = detail, status, problems
        lines = [f"  {each.path}: {each.message}" for each in problems]
        super().__init__("\n".join([detail, *lines]))


class Unreachable(HeadraceError):
    """No gateway answered, or the connection broke."""


class BadAnswer(HeadraceError):
    """The answer is not what this version of the client expects."""


class Unauthorized(HeadraceError):
    """The gateway does not know the API key (401)."""


class Forbidden(HeadraceError):
    """The role of the API key does not allow the request (403)."""


class NotFound(HeadraceError):
    """The gateway has no such thing (404)."""


class Conflict(HeadraceError):
    """The request does not fit the present state (409)."""


class Invalid(HeadraceError):
    """Values of the request cannot be used (400, 422). `problems` names each by its key."""


class TooManyRequests(HeadraceError):
    """The gateway refuses for now (429), and did so again after the retries."""


class Unavailable(HeadraceError):
    """The gateway, or a part that it needs, failed (5xx)."""


class RunFailed(HeadraceError):
    """The run or the chain for which `wait` waited has failed."""


class WaitTimeout(HeadraceError, TimeoutError):
    """The run or the chain was not over in time. It goes on."""


class NotInstalled(HeadraceError, ImportError):
    """A package that is needed for a table is not installed."""


BY_STATUS: Mapping[int, type[HeadraceError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: Invalid,
    429: TooManyRequests,
}


def refusal(status: int, body: str, url: str) -> HeadraceError:
    """Return the error of an answer with the status `status`: a problem document, or an error in
    the format of OpenAI's API."""
    problems: list[Problem] = []
    detail = f"{url} answered {status}"
    try:
        document = json.loads(body)
        problems = [
            Problem(str(each["path"]), str(each["message"]))
            for each in document.get("problems") or ()
        ]
        is_openai = "error" in document
        detail = str(document["error"]["message"] if is_openai else document["detail"])
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    usual = Unavailable if status >= 500 else HeadraceError
    error = BY_STATUS.get(status, usual)(detail, status, problems)
    if status == 401:
        error.add_note("Set HEADRACE_API_KEY, or name a key: Client(api_key=...)")
    return error
