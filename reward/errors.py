"""How an exception reads in a detail or a log line."""


def brief(error: Exception) -> str:
    """An exception in one line."""
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except Exception:
        # SymPy's errors hold expressions whose text can itself fail to be built.
        return type(error).__name__
