"""Commands on runs: submit, follow, explain, report, send to a tracker. They ask the gateway."""
