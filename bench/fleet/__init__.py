"""Redis and leases under many workers."""
