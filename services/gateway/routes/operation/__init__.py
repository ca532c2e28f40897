"""Routes about the gateway itself: health, and metrics for Prometheus."""
