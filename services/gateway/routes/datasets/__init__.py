"""Routes about datasets: upload, list, preview, append, delete."""
