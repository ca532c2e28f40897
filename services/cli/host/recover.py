"""`headrace recover`: go on after Redis has lost writes that it had acknowledged."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import AsJson, Data, data_folder
from headrace.cli.output import CliError, out, print_json, refusal
from services.cli.host.backup import RedisURL

if TYPE_CHECKING:
    from services.recovery.recover import Recovered


def recover(
    data: Data = None,
    redis_url: RedisURL = None,
    yes: Annotated[bool, typer.Option("--yes", help="Accept the loss without a question.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go on from the newest checkpoints after Redis lost writes.

    Stop everything first. Says what is lost, and asks; with --json it changes nothing without
    --yes. A backup (`headrace restore`) loses less.

    Example:
    headrace recover --data headrace-data
    """
    from redis.exceptions import RedisError

    from services.launch import LaunchError, configured_redis_url
    from services.recovery.recover import CannotRecover, cut_ledgers

    folder = data_folder(data).resolve()
    if not folder.is_dir():
        raise CliError(f"the data folder {folder} does not exist: name it with --data")
    url = redis_url or configured_redis_url()
    try:
        if url is None:
            done = _on_a_copy(folder, yes, as_json)
        else:
            recovered = _recovered(url, folder, "", yes, as_json)
            cut_ledgers(folder, recovered.steps)
            done = recovered.done
    except (LaunchError, CannotRecover, ValueError) as error:
        raise refusal(error) from None
    except RedisError as error:
        raise CliError(f"Redis does not answer: {error}; name it with --redis-url") from None
    except OSError as error:
        raise CliError(f"{error.filename or folder}: {error.strerror or error}") from None
    if as_json:
        print_json({"done": done})
        return
    for sentence in done:
        out.print(sentence, markup=False, soft_wrap=True)
    out.print("[green]done[/]" if done else "nothing is lost")


def _on_a_copy(folder: Path, yes: bool, as_json: bool) -> list[str]:
    """Recover the data folder's own Redis on a copy of its files, then put the copy in their
    place."""
    from services.launch import DataFolder, discard_copy, holder_of, redis_on_a_copy, use_copy
    from services.launch.data_folder import AGREED, REDIS
    from services.recovery.recover import cut_ledgers

    if not any((folder / name).exists() for name in (REDIS, AGREED, "runs", "datasets")):
        raise CliError(f"{folder} has no Redis, runs or datasets: name the data folder with --data")
    if holder := holder_of(folder):
        raise CliError(f"{holder} runs on the data folder {folder}: stop it first")
    with DataFolder(folder):
        with redis_on_a_copy(folder) as trial:
            done, steps = _recovered(trial.url, folder, trial.lost, yes, as_json)
        if not done:
            discard_copy(folder)
        else:
            if kept := use_copy(folder):
                done.append(f"Redis' files as they were are in {kept}")
            cut_ledgers(folder, steps)
    return done


def _recovered(url: str, folder: Path, files: str, yes: bool, as_json: bool) -> "Recovered":
    """Report the losses of the Redis at `url`, ask for consent, and recover it. `files`: the losses
    in its files in a sentence, or ''. Raises CliError without consent."""
    import asyncio

    from services.recovery.lost_writes import compare
    from services.recovery.recover import Recovered, note_loss
    from services.recovery.recover import recover as carry_out
    from services.store import Store

    async def recovered() -> Recovered:
        store = Store.from_url(url)
        try:
            losses = await compare(store, folder)
            lost = [*([files] if files else []), *losses.sentences()]
            if not lost:
                return Recovered([], {})
            _require_consent(lost, yes, as_json)
            done, steps = await carry_out(store, folder, losses)
            if files:
                await note_loss(store, files)
            return Recovered(done or lost, steps)
        finally:
            await store.close()

    return asyncio.run(recovered())


def _require_consent(lost: list[str], yes: bool, as_json: bool) -> None:
    if as_json:
        if yes:
            return
        raise CliError(f"{'; '.join(lost)}. Nothing was changed: add --yes to accept the loss")
    for sentence in lost:
        out.print(f"lost: {sentence}", markup=False, soft_wrap=True)
    if yes:
        return
    try:
        agreed = typer.confirm("Go on without it?")
    except typer.Abort:
        # Nobody can be asked, or Ctrl-C.
        out.print()
        agreed = False
    if not agreed:
        raise CliError("nothing was changed; --yes accepts the loss without a question")
