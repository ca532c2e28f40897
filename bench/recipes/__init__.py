"""Whether recipes learn, in runs on the demo's task."""
