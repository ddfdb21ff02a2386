"""Directories of safetensors and JSON, complete or absent."""
