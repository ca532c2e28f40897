"""Load models from folders, make them from scratch, add adapters, and write their files."""
