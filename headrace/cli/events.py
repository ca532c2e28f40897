"""The events of a run, as the gateway's stream has them."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """One event. `id` orders events within a run and is what a client resumes after."""

    id: str
    time: float
    kind: str
    data: dict[str, Any]

    @classmethod
    def parsed(cls, text: str) -> "Event":
        """Parse the data of one server-sent event."""
        document = json.loads(text)
        return cls(document["id"], document["time"], document["kind"], document["data"])

    def as_json(self) -> str:
        """Return the event as one line of JSON."""
        return json.dumps(self.__dict__, ensure_ascii=False, separators=(",", ":"))
