"""`/guide`: the guide, static files that the installation of Headrace builds from docs/."""

import re
from base64 import b64encode
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from services.http import Problem

router = APIRouter(include_in_schema=False)

SITE = Path(__file__).parent.parent / "guide"
SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


@router.get("/guide/{path:path}")
async def guide(request: Request, path: str, h: str = "") -> Response:
    """A file of the guide. Its own search adds `h`, the words that it marks in the text."""
    if not (SITE / "index.html").is_file():
        raise Problem(
            HTTPStatus.NOT_FOUND,
            "the guide is not built: `make guide` builds it, in a checkout of Headrace",
        )
    try:
        response = await StaticFiles(directory=SITE, html=True).get_response(path, request.scope)
    except HTTPException:
        raise Problem(HTTPStatus.NOT_FOUND, f"the guide has no page {path!r:.200}") from None
    response.headers["Cache-Control"] = "no-cache"
    if isinstance(response, FileResponse) and str(response.path).endswith(".html"):
        response.headers["Content-Security-Policy"] = policy(Path(response.path).read_bytes())
    return response


def policy(page: bytes) -> str:
    """Return the policy of a page of the guide: files of this host, and the scripts in the page.
    The search's style stands in its script."""
    scripts = {b64encode(sha256(code).digest()).decode() for code in SCRIPT.findall(page)}
    allowed = " ".join(f"'sha256-{digest}'" for digest in sorted(scripts))
    return (
        f"default-src 'self'; script-src 'self' {allowed}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; object-src 'none'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
