"""What turns of agents cost."""
