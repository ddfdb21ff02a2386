"""Directories of safetensors and JSON; no pickle anywhere."""
