"""The command line: one file per command or noun, each of which exposes ``app``."""
