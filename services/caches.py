"""The caches of libraries: below the data folder, closed to other users.

torch compiles into a folder of the shared /tmp whose name everybody can guess, and executes what it
finds there. Other libraries trust their caches in the same way.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

FOLDERS = {
    "CUDA_CACHE_PATH": "cuda",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash-attention",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "HF_MODULES_CACHE": "hf-modules",
    "MPLCONFIGDIR": "matplotlib",
    "NUMBA_CACHE_DIR": "numba",
    "QUACK_CACHE_DIR": "quack",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TRITON_CACHE_DIR": "triton",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "VLLM_CACHE_ROOT": "vllm",
}
"""The folder of each library's cache, by the variable that places it."""
NO_CACHES = {"TIKTOKEN_CACHE_DIR": ""}
"""Caches that are off. tiktoken would keep a model's vocabulary in the shared /tmp, by its path."""


def cache_variables(data: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables that place the caches of a process with this data folder. An operator's own
    variables stay, and an own XDG_CACHE_HOME has all caches. Models of the hub stay where the user
    has them."""
    root = Path(inherited.get("XDG_CACHE_HOME") or data.absolute() / "cache")
    user = Path(inherited.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    places = {name: root / folder for name, folder in FOLDERS.items()}
    places |= {"XDG_CACHE_HOME": root, "HF_HOME": user / "huggingface"}
    placed = {name: inherited.get(name) or str(place) for name, place in places.items()}
    return placed | {name: inherited.get(name, value) for name, value in NO_CACHES.items()}


def place_caches(data: Path) -> str:
    """Set these variables for this process and its children, and make their folder. Return a
    warning if another user can write to the folder, else ''."""
    os.environ.update(cache_variables(data, os.environ))
    folder = Path(os.environ["XDG_CACHE_HOME"])
    # A read-only disk has no caches: libraries then do without.
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder != data.absolute() / "cache" or not folder.is_dir():
        return ""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    status = folder.stat()
    if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        return ""
    return (
        f"another user can write to {folder}, and libraries run code that they find there: make it "
        "yours, or choose another data folder (HEADRACE_DATA)"
    )
