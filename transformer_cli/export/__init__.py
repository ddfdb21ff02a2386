"""A trained model leaves for another engine, which has to say the same as tx before it counts as exported."""
