"""The page: one document for all views, and its files, which load nothing from other hosts."""

import functools
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import xxhash
from fastapi import APIRouter, Request
from fastapi.responses import Response

from services.gateway.authentication import VIEWS, VIEWS_BELOW
from services.http import Problem, has_answer

router = APIRouter(include_in_schema=False)

BUILT = Path(__file__).parent.parent / "page/dist"
"""Made by `make page`, with a compressed copy of each file. Names hold a hash of the content."""
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
IMMUTABLE = "public, max-age=31536000, immutable"


class PageFile(NamedTuple):
    """A file of the page."""

    content: bytes
    compressed: bytes
    etag: str


@functools.cache
def _files() -> dict[str, PageFile]:
    names = sorted(path.name for path in BUILT.iterdir() if path.suffix in TYPES)
    contents = {name: (BUILT / name).read_bytes() for name in names}
    return {
        name: PageFile(
            content,
            (BUILT / f"{name}.gz").read_bytes(),
            f'"{xxhash.xxh3_64_hexdigest(content)}"',
        )
        for name, content in contents.items()
    }


async def view(request: Request) -> Response:
    """A view of the page. Its script reads the address, and the query is for the script alone."""
    return _answer(request, INDEX)


for _path in (*sorted(VIEWS), *(f"{beginning}{{rest:path}}" for beginning in VIEWS_BELOW)):
    # A route of FastAPI would refuse a query that it does not declare.
    router.add_route(_path, view)


@router.get("/page/{name}")
async def asset(request: Request, name: str) -> Response:
    """Its script and its style."""
    if name not in _files():
        raise Problem(HTTPStatus.NOT_FOUND, f"the page has no file {name!r}")
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    file = _files()[name]
    headers = {
        "Content-Security-Policy": POLICY,
        # A name with a hash in it never gets another content.
        "Cache-Control": "no-cache" if name == INDEX else IMMUTABLE,
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }
    if has_answer(request, file.etag):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    content = file.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"], content = "gzip", file.compressed
    return Response(content, media_type=TYPES[Path(name).suffix], headers=headers)
