"""The reward service against its own libraries."""
