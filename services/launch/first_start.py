"""`python -m services.launch.first_start FOLDER REWARD_FOLDER`: the secrets of an installation in
containers.

Makes each missing secret in a file of its own, which the other containers are given. Prints the API
key once, when it makes it. Existing secrets stay as they are, so users can put their own there
first. The reward service reads text that the policy wrote, so its folder holds only its own key.
"""

import os
import secrets
import sys
from pathlib import Path

from services.launch.redis import user
from services.runtime.api_key import API_KEY, REDIS_PASSWORD, REWARD_KEY, new_key
from services.volume import fsync

REDIS_USERS = "redis-users.conf"
"""The file that Redis reads: the password's hash, and the forbidden commands."""


def main() -> int:
    """Make the missing secrets. Return the exit code."""
    folder, reward_folder = map(Path, sys.argv[1:])
    try:
        password, _ = kept(folder / REDIS_PASSWORD)
        replace(folder / REDIS_USERS, user(password))
        reward_key, _ = kept(folder / REWARD_KEY)
        replace(reward_folder / REWARD_KEY, reward_key + "\n")
        key, is_new = kept(folder / API_KEY)
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
        print(f"error: {folder} cannot be used for secrets: {why}", file=sys.stderr)
        return 1
    if is_new:
        print(f"The API key, shown this once: {key}", flush=True)
    return 0


def kept(path: Path) -> tuple[str, bool]:
    """Return the secret in `path`, and whether it is new. An empty file counts as missing."""
    if path.exists() and (text := path.read_text().strip()):
        return text, False
    secret = secrets.token_urlsafe(32) if path.name == REDIS_PASSWORD else new_key()
    replace(path, secret + "\n")
    return secret, True


def replace(path: Path, text: str) -> None:
    """Write the whole file or nothing. All users of a container may read it, because Redis runs as
    another user. Only the containers that need the folder have it."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    beside.write_text(text)
    beside.chmod(0o444)
    fsync(beside)
    os.replace(beside, path)
    fsync(path.parent)


if __name__ == "__main__":
    sys.exit(main())
