"""`/`: the page, static files that load nothing from other hosts."""

import re
from http import HTTPStatus
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import Response

from services.http import Problem

router = APIRouter(include_in_schema=False)

WEB = Path(__file__).parent.parent / "web"

# uPlot is kept in the tree, with its licence, so that the page works without the internet.
NAME = re.compile(r"(vendor/)?[\w.]+\.(css|js)")
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-cache",
}


@router.get("/")
async def index() -> Response:
    """The page."""
    return _file("index.html")


@router.get("/web/{name:path}")
async def asset(name: str) -> Response:
    """Its style and its script."""
    if not NAME.fullmatch(name) or not (WEB / name).is_file():
        raise Problem(HTTPStatus.NOT_FOUND, f"the page has no file {name!r}")
    return _file(name)


def _file(name: str) -> Response:
    kind = TYPES[name.rpartition(".")[2]]
    return Response((WEB / name).read_bytes(), media_type=f"{kind}; charset=utf-8", headers=HEADERS)
