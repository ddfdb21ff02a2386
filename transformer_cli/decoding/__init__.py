"""Ids in, ids out: how a trained model writes a sentence."""
