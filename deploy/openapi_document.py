"""Print the gateway's OpenAPI document, without a server: `python -m deploy.openapi_document`.

`make page` makes the types of the page from it, so a route that changes breaks the page's build.
"""

import json
import sys
import tempfile
from pathlib import Path

from services.gateway.app import create_app
from services.gateway.settings import GatewaySettings


def document() -> str:
    """Return the document as JSON."""
    with tempfile.TemporaryDirectory() as data:
        app = create_app(GatewaySettings(data=Path(data)), "unused")
        return json.dumps(app.openapi(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
