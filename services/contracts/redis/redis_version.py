"""Tell which Redis servers have the known flaws of the Lua engine. Pure.

The flaws are CVE-2024-46981, CVE-2025-46817, CVE-2025-49844 and others: anyone who can run scripts
can run code as the server's user.
"""

Version = tuple[int, int, int]

MENDED: dict[str, dict[tuple[int, int], int]] = {
    "Redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
"""Server → the first patch of each line of releases that is mended. Later lines all are."""


def lua_flaw(server: str, version: Version) -> str | None:
    """Return a warning for the operator of this `server` ("Redis" or "Valkey"), or None if the
    version has the fixes."""
    lines = MENDED[server]
    line, patch = version[:2], version[2]
    if line > max(lines) or (line in lines and patch >= lines[line]):
        return None
    mended = ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in lines.items())
    return (
        f"{server} {'.'.join(map(str, version))} has known flaws in its Lua engine (CVE-2025-49844 "
        "and others): whoever may connect to it can run code as its user. Install one with the "
        f"fixes ({mended} or later), unless your distribution has put them into this version"
    )
