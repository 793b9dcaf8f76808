"""What `counterseal init` writes. The files are data: nothing imports them from here."""
