"""The commands: parse, load the configuration, call one function, print."""
