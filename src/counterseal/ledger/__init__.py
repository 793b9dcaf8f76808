"""The ledger: entries, the store's records, rows and requests, and the rules over rows. Pure."""
