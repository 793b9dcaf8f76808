"""Files of one project. They are data: nothing imports them from here."""
