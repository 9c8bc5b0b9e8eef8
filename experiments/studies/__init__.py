"""Questions about attention, each a file: what is trained for it, and what is written of what that finds."""
