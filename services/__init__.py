"""The control plane: contracts, store, datasets, gateway, launcher and command line.

Everything here runs without torch and without vLLM: the gateway's image stays small and the
command line starts fast. Processes with weights in memory (`rollout`, `learner`) and `reward`
import from here; nothing here imports them.
"""
