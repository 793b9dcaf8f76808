"""What a tool declares: the record, the ways to write it, and what it looks like to a model."""
