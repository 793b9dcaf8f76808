"""Stands beside the tools, and is imported by them."""

GREETING = "hello from beside"
