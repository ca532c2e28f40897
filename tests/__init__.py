"""A folder whose fixtures serve all its files is a package, so that they end with its last test."""
