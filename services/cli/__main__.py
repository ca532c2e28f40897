"""`python -m services.cli`, the same as `headrace`."""

from services.cli import app

if __name__ == "__main__":
    app()
