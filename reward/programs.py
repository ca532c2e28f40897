"""`/v1/python`: a program of the policy, run as the verifier `code` runs those that it tests."""

from reward.remote_pool import Call
from reward.verifiers.base import Item, Step, Verifier
from reward.verifiers.code import CodeVerifier
from reward.verifiers.registry import Registry, UnusableError, usable
from reward.workers.protocol import pack_item
from reward.workers.requests import Request
from services.contracts.programs import PythonRequest
from services.http import Problem


def work_of(request: PythonRequest, registry: Registry) -> Request | Call:
    """The program as work for the pools; its verdict has the output as detail, or is an `error`.
    Raises Problem (422, 503)."""
    name = CodeVerifier.name
    seconds = request.seconds
    try:
        verifier, params = usable(registry, name, {"timeout": seconds, "time_limit": seconds})
    except UnusableError as error:
        # The operator can mend that.
        raise Problem(503, f"no program can run here: {error}") from None
    item = Item(name, "", request.code, None, params.model_dump())
    try:
        packed = pack_item(item)
    except ValueError as error:
        raise Problem(422, f"code: {error}") from None
    if isinstance(verifier, Verifier):
        return Request(name, packed, verifier.deadline(params), None, True, Step.RUN)
    return Call(verifier, item, params, Step.RUN)
