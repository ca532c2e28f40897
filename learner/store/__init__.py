"""The run and the pool in the store, and the commands that ranks receive.

All calls of `services.store` go through here. Imports neither models nor training state.
"""
