"""HTTP clients that connect only where a contract lets them.

`clients` and `connections` are built on httpx, which is slow to import: whoever uses them imports
them where they are needed.
"""
