"""The idempotency ledger: its entries, the rows and requests of the store, and their rules."""
