"""Models from folders and from nothing, adapters beside them, and what is written of them."""
