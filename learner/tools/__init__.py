"""Commands on checkpoints and model folders: chat, export, rendered rows. They use neither runs nor
the store."""
