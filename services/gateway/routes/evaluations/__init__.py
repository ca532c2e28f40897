"""Routes about evaluations: of a run while it trains, and of any model."""
