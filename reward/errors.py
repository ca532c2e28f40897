"""The text of an exception in a detail or a log line."""


def brief(error: Exception) -> str:
    """Return an exception as one line."""
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except Exception:
        # SymPy's errors hold expressions whose text may itself raise.
        return type(error).__name__
