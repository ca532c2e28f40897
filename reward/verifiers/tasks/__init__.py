"""Verifiers of public task families: Countdown, IFEval, reasoning-gym."""
