"""`/`: the page to watch, static files without anything from elsewhere."""

from http import HTTPStatus
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

from services.http import Problem

router = APIRouter(include_in_schema=False)

TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "answers.js": "text/javascript; charset=utf-8",
    "chart.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    # Kept in the tree, with its licence, so that the page works where nothing else is reached.
    "vendor/uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "vendor/uPlot.min.css": "text/css; charset=utf-8",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; style-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


@router.get("/")
async def index() -> Response:
    """The page."""
    return _file("index.html")


@router.get("/web/{name:path}")
async def asset(name: str) -> Response:
    """Its style and its script."""
    if name not in TYPES:
        raise Problem(HTTPStatus.NOT_FOUND, f"the page has no file {name!r}")
    return _file(name)


def _file(name: str) -> Response:
    content = (files("services.gateway") / "web" / name).read_bytes()
    return Response(content, media_type=TYPES[name], headers=HEADERS)
