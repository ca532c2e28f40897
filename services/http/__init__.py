"""HTTP shared by the gateway and the reward service: error documents, limits of connections and
bodies, and ETags.

All errors have one shape. This package knows no route: each service passes its own errors to
`install`.
"""

from services.http.body_limits import BodyLimit, InFlight, Limit, discard
from services.http.browsers import BrowserHeaders, foreign, host_of, host_problem
from services.http.compressed import Compressed
from services.http.connections import server_config, trust
from services.http.disconnects import while_connected
from services.http.etag import UNCHANGED, has_answer, unless_tagged, unless_unchanged
from services.http.keys import KeyRequired, has_key
from services.http.problems import (
    CLIENT_GONE,
    Problem,
    ProblemItem,
    answer,
    install,
    responses,
    summary,
    unexpected,
)
from services.http.query_parameters import refuse_unused_parameters
from services.http.sendfile import Bandwidth, OpenFile, byte_range, limited
from services.http.single_headers import SingleHeaders
from services.http.strict_bodies import StrictBodies, read_body, replayed_body
