"""What people do through the store: decide on approvals, change the registry, check the record."""
