"""Alembic's migrations, part of the package: an installed tuner upgrades its own databases."""
