"""Files that `counterseal init` writes. They are data: nothing imports them from here."""
