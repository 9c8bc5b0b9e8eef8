"""How a script starts: flags, streams, one line for a mistake."""
