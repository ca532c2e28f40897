"""The `code` verifier: finds the program in an answer, runs its tests, and compares output."""
