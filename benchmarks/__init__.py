"""Counterseal beside others; `README.md` tells more."""
