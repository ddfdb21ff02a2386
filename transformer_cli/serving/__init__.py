"""A trained run as a service over HTTP."""
