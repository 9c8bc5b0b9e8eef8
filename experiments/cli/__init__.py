"""How a script starts: its flags, its files, and one line for a user error."""
