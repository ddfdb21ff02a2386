"""How good a translation is, by measures with a signature."""
