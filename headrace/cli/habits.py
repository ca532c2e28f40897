"""Words that users bring from kubectl, docker, git and other programs, and the commands they mean.

Pure. Only words that have one meaning here are understood. Others get a suggestion.
"""

from collections.abc import Collection

READS = ("get", "list", "ls", "ps", "describe", "info", "inspect")
REMOVES = ("delete", "del", "remove", "destroy")
STOPS = ("stop", "kill", "abort", "terminate")
NOUNS = {
    "run": "runs",
    "dataset": "datasets",
    "chain": "chains",
    "worker": "workers",
    "recipe": "recipes",
    "model": "models",
    "verifier": "verifiers",
    "key": "keys",
}
LISTS = {"datasets": "list", "keys": "list"}
"""Groups whose list is a command of theirs."""
SHOWS = {"runs": ["show"], "datasets": ["datasets", "show"], "recipes": ["recipes"]}
DELETES = {
    "runs": ["rm"],
    "chains": ["rm"],
    "datasets": ["datasets", "rm"],
    "verifiers": ["verifiers", "rm"],
    "keys": ["keys", "revoke"],
}
SUGGESTED = {
    **dict.fromkeys(("train", "run", "start", "create", "apply", "launch", "new"), "submit"),
    **dict.fromkeys(("serve", "server"), "up"),
    **dict.fromkeys(("down", "shutdown"), "up -h"),
    **dict.fromkeys(("attach", "follow", "tail"), "watch"),
    **dict.fromkeys(("edit", "update", "patch"), "set"),
    **dict.fromkeys(("login", "ui", "dashboard", "browse"), "open"),
    **dict.fromkeys(("check", "diagnose"), "doctor"),
    **dict.fromkeys(("reward", "rewards"), "verifiers"),
    **dict.fromkeys(("download", "save"), "export"),
    **dict.fromkeys(("ask", "generate"), "chat"),
    **dict.fromkeys(("nodes", "hosts", "gpus"), "workers"),
    "upload": "datasets add",
    "evaluate": "eval",
    "status": "why",
    "top": "workers",
    "schema": "config schema",
}
"""Commands, by words that may mean more than one thing."""
IN_GROUPS = {
    **dict.fromkeys(("ls", "all"), ("list",)),
    **dict.fromkeys(("get", "describe", "info"), ("show",)),
    **dict.fromkeys((*REMOVES, "rm"), ("rm", "revoke")),
    **dict.fromkeys(("upload", "create", "new", "make"), ("add",)),
}
"""Commands of groups such as `datasets`, by other words for them."""


def understood(words: list[str]) -> list[str] | None:
    """Return the `headrace` command that `words` mean, or None."""
    verb, *rest = words
    verb = verb.lower()
    if verb in NOUNS and verb != "run":
        return [NOUNS[verb], *rest]
    noun = rest[0].lower() if rest else ""
    things = NOUNS.get(noun, noun if noun in NOUNS.values() else "")
    if things:
        rest = rest[1:]
    named = bool(rest) and not rest[0].startswith("-")
    if verb in READS:
        if named:
            shown = SHOWS.get(things or "runs")
            return [*shown, *rest] if shown else None
        things = things or "runs"
        return [things, *([LISTS[things]] if things in LISTS else []), *rest]
    if verb in REMOVES:
        deleted = DELETES.get(things or "runs")
        return [*deleted, *rest] if deleted else None
    if verb in STOPS and things in ("", "runs", "chains"):
        return ["cancel", *rest]
    return None


def understood_in_group(words: list[str], commands: Collection[str]) -> list[str] | None:
    """Return which of a group's `commands` the words mean, or None."""
    meant = [name for name in IN_GROUPS.get(words[0].lower(), ()) if name in commands]
    return [*meant, *words[1:]] if meant else None
