"""Numbers of things in sentences."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """`count` with its noun: `1 row`, `2,000 rows`. `plural`: default `noun` with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
