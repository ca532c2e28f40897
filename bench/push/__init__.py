"""From the end of a step until its version is on every host."""
