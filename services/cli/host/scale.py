"""`headrace scale`: more or fewer rollout workers of the `headrace up` on this machine."""

from typing import Annotated

import typer

from headrace.cli.options import AsJson, Data, data_folder
from headrace.cli.output import CliError, out, print_json, refusal

SCALABLE = "rollout"


def scale(
    what: Annotated[str, typer.Argument(metavar="rollout=N", help="How many there shall be.")],
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Change the number of rollout workers, while runs go on.

    It returns once that is done. A worker that leaves hands its leases back; one that joins has the
    newest weights.

    Example:
    headrace scale rollout=2
    """
    from services.launch import LaunchError
    from services.launch.control import ask

    wanted = wanted_of(what)
    say = (lambda text: None) if as_json else (lambda text: out.print(text, markup=False))
    try:
        done = ask(data_folder(data).resolve(), {"scale": {SCALABLE: wanted}}, say)
    except LaunchError as error:
        raise refusal(error) from None
    if as_json:
        print_json(done)
        return
    count = done["rollout"]
    out.print(f"{count} rollout worker{'' if count == 1 else 's'} on this machine")


def wanted_of(what: str) -> int:
    """Parse the number in `rollout=N`. Raises CliError for anything else."""
    part, separator, number = (piece.strip() for piece in what.partition("="))
    if not separator:
        raise CliError(f"{what!r}: say how many, like rollout=2")
    if part != SCALABLE:
        raise CliError(
            f"{part!r} cannot be scaled: only rollout workers come and go. The number of learner "
            "ranks is given at the start (`headrace up --ranks`)"
        )
    if not (number.isascii() and number.isdigit()):
        raise CliError(f"rollout={number}: {number!r} is not a number of workers")
    return int(number)
