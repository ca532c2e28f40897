"""Verifiers, one module each, and the registry that finds them by name.

A verifier's module is imported in the service's main process too, for its parameters' schema:
heavy imports belong into `Verifier.warm`, which runs in the worker processes' common parent alone.

An own verifier is a class derived from `Verifier` or `RemoteVerifier` of `reward.verifiers.base`,
in a package installed beside headrace that names it in its entry points:

    [project.entry-points."headrace.verifiers"]
    haiku = "my_package.haiku:HaikuVerifier"
"""
