"""URLs as they may be shown: without their passwords."""

import re

SECRET = re.compile(r"([?&](?:sentinel_)?password=)[^&#]*")


def redacted(url: str) -> str:
    """`url` without its passwords, for logs and errors."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url if "@" not in url else "***"
    # The last @ wherever it is: a password that was not encoded may hold any character.
    user, at, place = rest.rpartition("@")
    if not at or (url.startswith("unix:") and "?" in user):
        return SECRET.sub(r"\1***", url)
    name, colon, _ = user.partition(":")
    shown = f"{scheme}://{name}{':***' if colon else ''}@{place}"
    return SECRET.sub(r"\1***", shown)
