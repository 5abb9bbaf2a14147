"""Whose processes are whose: every process of a stage ends with it, and what it reserved is held until then."""
