"""Commands on the installation of this machine: start, scale, measure, save and recover it."""
