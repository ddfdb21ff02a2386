"""What the commands do, for Python: the same functions, and the same words when something is wrong."""
