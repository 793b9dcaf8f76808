"""People's actions in the store: decide on approvals, change the registry, check the record."""
