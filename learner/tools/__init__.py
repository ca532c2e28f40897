"""Commands on checkpoints and model folders: chat, export, rendered rows. No run, no store."""
