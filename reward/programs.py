"""`/v1/python`: runs a program of the policy in the sandbox of the verifier `code`."""

from reward.remote_pool import RemoteCall
from reward.verifiers.base import Item, ItemWork, Verifier
from reward.verifiers.programs.code import CodeVerifier
from reward.verifiers.registry import Registry, UnusableError, usable
from reward.workers.protocol import Request, pack_item
from services.contracts.programs import PythonRequest
from services.http import Problem


def work_of(request: PythonRequest, registry: Registry) -> Request | RemoteCall:
    """Return the program as work for the pools. The detail of its verdict is the program's output.
    Raises Problem (422, 503)."""
    name = CodeVerifier.name
    seconds = request.seconds
    try:
        verifier, params = usable(registry, name, {"timeout": seconds, "time_limit": seconds})
    except UnusableError as error:
        # Status 503: the operator can mend that.
        raise Problem(503, f"no program can run here: {error}") from None
    item = Item(name, "", request.code, None, params.model_dump())
    try:
        packed = pack_item(item)
    except ValueError as error:
        raise Problem(422, f"code: {error}") from None
    if isinstance(verifier, Verifier):
        return Request(name, packed, verifier.deadline(params), None, True, ItemWork.RUN)
    return RemoteCall(verifier, item, params, ItemWork.RUN)
