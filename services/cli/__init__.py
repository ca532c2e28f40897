"""Commands of `headrace` that need the server on this machine: `commands` lists them.

`headrace.cli` has the other commands, and the rules for all of them. Only `bench` imports this
package.
"""
