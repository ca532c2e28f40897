"""`headrace backup` and `headrace restore`: a whole installation in one file, and back."""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import AsJson, Data, data_folder
from headrace.cli.output import CliError, out, print_json, refusal, size
from headrace.wording import counted

if TYPE_CHECKING:
    from services.backup.archive import Index
    from services.store import Store

RedisURL = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Its Redis. Default: HEADRACE_REDIS_URL, if it is set, else that of the data folder.",
    ),
]


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to: a .tar file.")],
    data: Data = None,
    redis_url: RedisURL = None,
    as_json: AsJson = False,
) -> None:
    """Write the whole installation to FILE.

    The file holds runs, datasets, checkpoints and unfinished work. Runs may go on meanwhile. It
    holds all prompts and answers, and no API key that works.

    Example:
    headrace backup /backups/headrace.tar
    """
    from services.backup.archive import back_up

    folder = data_folder(data).resolve()
    if not folder.is_dir():
        raise CliError(f"the data folder {folder} does not exist: name it with --data")
    if file.exists() and not file.is_file():
        # The backup is renamed into its place, which would delete a device.
        raise CliError(f"{file} is no file: name one that is new, or may be replaced")
    _carry_out(
        folder, redis_url, as_json, file, lambda store, say: back_up(store, folder, file, say)
    )


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `headrace backup` wrote.")],
    data: Data = None,
    redis_url: RedisURL = None,
    as_json: AsJson = False,
) -> None:
    """Put a backup into an empty data folder and an empty Redis.

    At the next `headrace up` the runs that were running go on.

    Example:
    headrace restore /backups/headrace.tar --data headrace-data
    """
    from services.backup.archive import restore as put_back
    from services.runtime.process import keep_files_private

    keep_files_private()
    folder = data_folder(data).resolve()
    _carry_out(
        folder, redis_url, as_json, folder, lambda store, say: put_back(store, folder, file, say)
    )


def _carry_out(
    data: Path,
    redis_url: str | None,
    as_json: bool,
    written: Path,
    work: "Callable[[Store, Callable[[str], None]], Awaitable[Index]]",
) -> None:
    import asyncio

    from redis.exceptions import RedisError

    from services.backup.archive import BackupError
    from services.contracts.schema import SchemaMismatch
    from services.launch import LaunchError, configured_redis_url, redis_of
    from services.store import Store
    from services.store.server.dumps import ForeignDump, NotEmpty

    say = (lambda text: None) if as_json else (lambda text: out.print(text, markup=False))

    async def carried_out(url: str) -> "Index":
        store = Store.from_url(url)
        try:
            return await work(store, say)
        finally:
            await store.close()

    given = redis_url or configured_redis_url()
    try:
        with nullcontext(given) if given else redis_of(data) as url:
            index = asyncio.run(carried_out(url))
    except (BackupError, SchemaMismatch, NotEmpty, ForeignDump, LaunchError, ValueError) as error:
        raise refusal(error) from None
    except RedisError as error:
        raise CliError(f"Redis does not answer: {error}; name it with --redis-url") from None
    except OSError as error:
        raise CliError(f"{error.filename or written}: {error.strerror or error}") from None
    if as_json:
        print_json(asdict(index))
        return
    out.print(
        f"[green]done[/]: {counted(index.runs, 'run')}, {counted(index.datasets, 'dataset')}, "
        f"{size(index.bytes)} in {counted(index.files, 'file')}"
    )
