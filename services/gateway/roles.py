"""The role that a request needs: `read` for what changes nothing, `submit` for what does, `admin`
for keys and for what workers write. Pure."""

from services.contracts.records import Role

ORDER: tuple[Role, ...] = ("read", "submit", "admin")
"""Each role may do what the roles before it may."""
SAFE = ("GET", "HEAD", "OPTIONS")
READING = (
    *("/v1/preview", "/v1/datasets/preview", "/v1/login"),
    "/openai/v1/fine_tuning/alpha/graders/validate",
)
"""Paths whose POST only reads, on this installation: previews, the link that logs in with
the same key, and a grader that is checked. A grader or a verifier that scores an answer may ask a
judge that costs money."""
MANAGING = ("/v1/keys",)
CODE = "/v1/verifiers"
"""Files there run as code. An answer is scored with `submit`."""
WORKERS = ("/v1/files/",)
"""Paths that workers on other hosts write to."""


def needed_role(method: str, path: str) -> Role:
    """Return the lowest role that may send this request."""
    path = path.rstrip("/")
    if path in MANAGING or path.startswith(tuple(f"{under}/" for under in MANAGING)):
        return "admin"
    if method in SAFE or path in READING:
        return "read"
    if path == CODE or path.startswith(f"{CODE}/"):
        return "submit" if method == "POST" and path.endswith("/score") else "admin"
    return "admin" if path.startswith(WORKERS) else "submit"


def may(role: Role, needed: Role) -> bool:
    return ORDER.index(role) >= ORDER.index(needed)
