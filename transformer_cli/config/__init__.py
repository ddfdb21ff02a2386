"""What a user may write, section by section; nothing here imports torch."""
