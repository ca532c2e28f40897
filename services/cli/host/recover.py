"""`headrace recover`: go on after Redis has lost writes that it had acknowledged."""

from contextlib import nullcontext
from typing import Annotated

import typer

from services.cli.host.backup import RedisURL
from services.cli.options import AsJson, Data, data_folder
from services.cli.output import CliError, out, print_json


def recover(
    data: Data = None,
    redis_url: RedisURL = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go on from the newest checkpoints after Redis has lost acknowledged writes.

    Stop everything first. Says what is lost, and asks. A backup (`headrace restore`) loses less.
    """
    import asyncio

    from redis.exceptions import RedisError

    from services.launch import (
        LaunchError,
        configured_redis_url,
        holder_of,
        mend,
        put_back,
        redis_of,
    )
    from services.recovery.lost_writes import compare
    from services.recovery.recover import CannotRecover, note_loss
    from services.recovery.recover import recover as carry_out
    from services.store import Store

    folder = data_folder(data).resolve()
    if not folder.is_dir():
        raise CliError(f"the data folder {folder} does not exist: name it with --data")
    given = redis_url or configured_redis_url()

    agreed = False

    async def recovered(url: str, files: str | None) -> list[str]:
        store = Store.from_url(url)
        try:
            nonlocal agreed
            losses = await compare(store, folder)
            sentences = [*([files] if files else []), *losses.sentences()]
            if not sentences:
                return []
            if not as_json:
                for sentence in sentences:
                    out.print(f"lost: {sentence}", markup=False, soft_wrap=True)
            if losses and not (yes or as_json) and not typer.confirm("Go on without it?"):
                raise CliError("nothing was changed")
            agreed = True
            done = await carry_out(store, folder, losses) if losses else sentences
            if files:
                await note_loss(store, files)
            return done
        finally:
            await store.close()

    try:
        mended = None
        if given is None:
            if holder := holder_of(folder):
                raise CliError(f"{holder} runs on the data folder {folder}: stop it first")
            if (folder / "redis").is_dir():
                mended = mend(folder / "redis")
        try:
            with nullcontext(given) if given else redis_of(folder) as url:
                done = asyncio.run(recovered(url, mended.lost if mended else None))
        except BaseException:
            # The next start must find what this one has found.
            if mended is not None and not agreed:
                put_back(folder / "redis", mended)
            raise
    except (LaunchError, CannotRecover, ValueError) as error:
        raise CliError(str(error)) from None
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
