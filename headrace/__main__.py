"""`python -m headrace`, the same as `headrace`."""

from headrace.cli import app

if __name__ == "__main__":
    app()
