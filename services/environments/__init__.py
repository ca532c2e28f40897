"""Environments of other libraries and servers, as players of a run's sessions (`headrace agents`).

Each module plays one kind of environment: a server with `reset` and `step` (`stepped`), an OpenEnv
server (`openenv_server`), a taskset of the library `verifiers` (`verifiers_taskset`). They are
clients of the sessions API, so gateway, worker and learner need no such library. Imports no
other package of Headrace.
"""
