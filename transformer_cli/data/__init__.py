"""Text on disk becomes batches of ids."""
