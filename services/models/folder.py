"""Checks a model folder: its links, its descriptions, its tokenizer's files, its weights."""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from services.contracts.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from services.models.adapter import check_adapter
from services.models.description import check_config, check_tokens, read_object
from services.models.errors import UnusableFolder
from services.models.headers import Header, Headers, Tensors, same_tensor
from services.models.opening import open_inside
from services.models.tokenizer import check_tokenizer_config

CONFIG = "config.json"
GENERATION = "generation_config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TEMPLATES = "additional_chat_templates"
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
MIB = 1 << 20
READ = {
    CONFIG: 4 * MIB, GENERATION: 4 * MIB, ADAPTER_CONFIG: 4 * MIB, INDEX: 64 * MIB,
    "tokenizer_config.json": 16 * MIB, "special_tokens_map.json": 16 * MIB,
    "added_tokens.json": 16 * MIB,
}  # fmt: skip
"""Files that are parsed here, and their maximum sizes; real files are at most a quarter as
large."""
LARGE = {
    "tokenizer.json": 64 * MIB, "vocab.json": 64 * MIB, "merges.txt": 64 * MIB,
    "vocab.txt": 64 * MIB, "tokenizer.model": 64 * MIB, "chat_template.jinja": MIB,
    "chat_template.json": 4 * MIB,
}  # fmt: skip
"""Other files that libraries read into memory as a whole."""
MOST_FILES = 10_000


@dataclass(frozen=True)
class ModelFolder:
    """The content of a checked folder."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    """The config.json; empty for an adapter."""
    tensors: Tensors = field(default_factory=Tensors)
    """The tensors of its .safetensors files; empty without such files."""
    adapter: dict[str, Any] | None = None
    """The adapter_config.json; None for a whole model."""
    unread: tuple[str, ...] = ()
    """Files of weights that libraries ignore, because other files come first."""


def same_weights(folder: Path, first: str, second: str) -> bool:
    """Return whether two tensors of the checked `folder` are equal. Raises UnusableFolder,
    OSError."""
    root = cache_or_self(folder)
    with ExitStack() as opened:
        files = []
        for path in sorted(folder.glob("*.safetensors"), key=lambda path: path.name != SINGLE):
            files.append(open_inside(root, path))
            opened.callback(os.close, files[-1])
        return same_tensor(files, first, second)


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def check_folder(folder: Path) -> ModelFolder:
    """Check `folder` and return its content. Raises UnusableFolder if it is unsafe or unusable for
    a library. A folder without weights passes, unless it has weights in a format that can contain
    code."""
    try:
        return _FolderCheck(folder).check()
    except OSError as error:
        what = error.filename or folder
        raise UnusableFolder(f"{what} cannot be read: {error.strerror or error}") from error


def cache_or_self(folder: Path) -> Path:
    """Return the folder that links of `folder` may lead into: the folder itself, or for a snapshot
    in a Hugging Face cache (`models--ORG--NAME/snapshots/REVISION`) the cache's entry of this
    model."""
    real = Path(os.path.realpath(folder))
    entry = real.parent.parent
    is_snapshot = real.parent.name == "snapshots" and entry.name.startswith("models--")
    return entry if is_snapshot else real


class _FolderCheck:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = cache_or_self(folder)
        self._names: set[str] = set()
        self._unread: list[str] = []

    def check(self) -> ModelFolder:
        self._names = set(self._files(self._folder))
        if TEMPLATES in os.listdir(self._folder):
            for name in self._files(self._folder / TEMPLATES):
                os.close(self._open(f"{TEMPLATES}/{name}", MIB))
        for name in LARGE.keys() & self._names:
            os.close(self._open(name, LARGE[name]))
        read = {name: self._read(name, READ[name]) for name in READ.keys() & self._names}
        tensors = self._weights(read.get(INDEX))
        config = self._object(read, CONFIG)
        if config:
            check_config(config, tensors, str(self._folder / CONFIG))
        check_tokens(self._object(read, GENERATION), GENERATION)
        self._tokenizer(read)
        adapter = self._adapter(read) if ADAPTER_CONFIG in read else None
        return ModelFolder(self._folder, config, tensors, adapter, tuple(self._unread))

    def _files(self, folder: Path) -> Iterator[str]:
        """Yield the names of the files in `folder`. Raises UnusableFolder for links that leave the
        model, and for special files."""
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries, 1):
                if count > MOST_FILES:
                    raise UnusableFolder(f"{folder} holds more than {MOST_FILES:,} files")
                if entry.is_symlink() and not self._inside(entry.path):
                    raise UnusableFolder(
                        f"{entry.path} is a link that leaves the model's folder: put the file "
                        "itself there"
                    )
                try:
                    mode = entry.stat().st_mode
                except FileNotFoundError:
                    continue  # a link to nothing
                if stat.S_ISREG(mode):
                    yield entry.name
                elif not stat.S_ISDIR(mode):
                    raise UnusableFolder(f"{entry.path} is neither a file nor a folder: remove it")

    def _inside(self, path: str) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self._root)

    def _open(self, name: str, max_bytes: int) -> int:
        """Open the file `name`, of at most `max_bytes` bytes. Returns its descriptor."""
        descriptor = open_inside(self._root, self._folder / name)
        if os.fstat(descriptor).st_size > max_bytes:
            os.close(descriptor)
            raise UnusableFolder(
                f"{self._folder / name} has more than {max_bytes >> 20} MiB, which no model's has"
            )
        return descriptor

    def _read(self, name: str, max_bytes: int) -> bytes:
        with os.fdopen(self._open(name, max_bytes), "rb") as file:
            return file.read(max_bytes)

    def _object(self, read: dict[str, bytes], name: str) -> dict[str, Any]:
        return read_object(read[name], str(self._folder / name)) if name in read else {}

    def _tokenizer(self, read: dict[str, bytes]) -> None:
        for name in ("special_tokens_map.json", "added_tokens.json"):
            self._object(read, name)
        name = "tokenizer_config.json"
        check_tokenizer_config(self._object(read, name), str(self._folder / name))
        for name in {"tokenizer.json", "vocab.json"} & self._names:
            try:
                msgspec.json.decode(self._read(name, LARGE[name]), type=dict[str, msgspec.Raw])
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                raise UnusableFolder(
                    f"{self._folder / name} is no JSON object that can be read: {error}"
                ) from error

    def _weights(self, index: bytes | None) -> Tensors:
        """Return all tensors that libraries read, without an adapter's."""
        files = {n for n in self._names if n.endswith(".safetensors")} - {ADAPTER_WEIGHTS}
        named = self._check_index(index, files) if index is not None else set()
        if not files and ADAPTER_CONFIG not in self._names:
            self._refuse_pickles("save_pretrained")
        # Libraries read in this order: the other files are copies in another layout, or leftovers.
        read = {SINGLE} & files or named or files
        headers, tensors = Headers(), Tensors()
        for name in sorted(files):
            for header in self._tensors(headers, name):
                if name in read:
                    tensors.add(header)
        self._unread = sorted(files - read)
        return tensors

    def _tensors(self, headers: Headers, name: str) -> list[Header]:
        path = self._folder / name
        descriptor = open_inside(self._root, path)
        try:
            return list(headers.tensors(descriptor, path))
        finally:
            os.close(descriptor)

    def _check_index(self, index: bytes, files: set[str]) -> set[str]:
        """Return the files that the index names."""
        path = self._folder / INDEX
        try:
            named = set(msgspec.json.decode(index, type=_Index).weight_map.values())
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise UnusableFolder(f"{path} is no list of weight files: {error}") from error
        if missing := sorted(named - files):
            raise UnusableFolder(
                f"{path} names {missing[0][:200]!r}, which is no .safetensors file of this folder"
            )
        return named

    def _adapter(self, read: dict[str, bytes]) -> dict[str, Any]:
        """Return the adapter's config, checked."""
        config = self._object(read, ADAPTER_CONFIG)
        if ADAPTER_WEIGHTS not in self._names:
            self._refuse_pickles("peft's save_pretrained")
            raise UnusableFolder(f"{self._folder} lacks {ADAPTER_WEIGHTS}: copy it there")
        tensors = {
            adapter_name.name: adapter_name.shape
            for adapter_name in self._tensors(Headers(), ADAPTER_WEIGHTS)
        }
        check_adapter(config, tensors, str(self._folder / ADAPTER_CONFIG))
        return config

    def _refuse_pickles(self, writer: str) -> None:
        pickled = sorted(name for name in self._names if name.endswith(PICKLED))
        if pickled:
            raise UnusableFolder(
                f"{self._folder} has weights in {pickled[0]} and none in .safetensors files: other "
                f"formats can hold code and are not read; write them again with {writer}"
            )
