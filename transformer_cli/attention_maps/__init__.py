"""Attention made visible: the numbers of one translation, and what is drawn, written and read out of them."""
