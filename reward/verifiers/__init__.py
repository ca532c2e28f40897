"""Verifiers, and the registry that finds them by name.

Rooms: `math` (with the reading of answers and numbers), `programs`, `text`, `tasks` (of public task
families) and `remote` (verifiers that ask another service).

The service's main process imports every verifier's module for the schema of its parameters. Heavy
imports belong in `Verifier.warm`, which runs only in the fork server. Nothing here imports the
pool, the scheduler or the HTTP application.

An own verifier is a class derived from `Verifier` or `RemoteVerifier` of `reward.verifiers.base`,
in a file that HEADRACE_VERIFIERS names, or in an installed package that names it as entry point:

    [project.entry-points."headrace.verifiers"]
    haiku = "my_package.haiku:HaikuVerifier"
"""
