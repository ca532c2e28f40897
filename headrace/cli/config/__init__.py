"""Commands about run configs: what a key means, the schema, a config to begin with."""
