"""Routes about agents' sessions: groups that agents lease, live traffic, and the API of each."""
