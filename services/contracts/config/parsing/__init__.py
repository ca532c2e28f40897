"""From raw values to a run config, and the errors that say which key is wrong."""
