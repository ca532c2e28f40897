"""Groups of samples: how they are encoded for the stream, and what their samples carry. Pure."""
