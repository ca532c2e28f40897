"""Published versions: copied or compared on the device, written whole or as deltas, registered.

Imports neither the coordinator nor the training scripts.
"""
