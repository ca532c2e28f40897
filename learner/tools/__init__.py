"""Commands on checkpoints: chat and export. No run, no store."""
