"""Compiled artifacts: made once per key, verified when they are loaded, shared between machines."""

from tuner.artifacts.cache import ArtifactCache, ArtifactPlace, BuiltArtifact

__all__ = ["ArtifactCache", "ArtifactPlace", "BuiltArtifact"]
