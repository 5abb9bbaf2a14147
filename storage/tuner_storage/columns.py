"""Column types that mean the same on SQLite and PostgreSQL, and that refuse what they could not give back."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, DateTime, Dialect, LargeBinary
from sqlalchemy.types import TypeDecorator

from tuner.speculation import Method, Speculation


def plain_json(value: object) -> Any:
    """The value as JSON gives it back: mappings become dicts, tuples lists.

    Raises:
        TypeError: It holds something that JSON cannot.
        ValueError: It holds NaN or infinity.
    """
    return json.loads(json.dumps(value, allow_nan=False, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be stored as JSON")


class StrictJson(TypeDecorator[Any]):
    """A JSON object. Python's json and SQLite would take NaN; PostgreSQL and other readers would not."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: object, dialect: Dialect) -> Any:  # noqa: ARG002
        """To what the database gives back, checked here: psycopg would raise errors that no one translates."""
        return None if value is None else plain_json(value)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment: aware, in UTC, to the microsecond. SQLite keeps no zone, so it gets UTC without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC.

        Raises:
            ValueError: The moment has no time zone.
        """
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"the moment {value.isoformat()} has no time zone")
        in_utc = value.astimezone(UTC)
        return in_utc.replace(tzinfo=None) if dialect.name == "sqlite" else in_utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """From UTC, or from the time zone of the server's session."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Compressed(TypeDecorator[bytes]):
    """Bytes, deflated: a stage's result is JSON of timings, which shrinks to about a fifth."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        """Deflate."""
        return None if value is None else zlib.compress(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        """Inflate."""
        return None if value is None else zlib.decompress(value)


class SpeculationColumn(TypeDecorator[Speculation]):
    """A speculation as a JSON object of its fields."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: Speculation | None, dialect: Dialect) -> dict[str, Any] | None:  # noqa: ARG002
        """To an object."""
        return None if value is None else asdict(value)

    def process_result_value(self, value: dict[str, Any] | None, dialect: Dialect) -> Speculation | None:  # noqa: ARG002
        """From an object; fields that a later version adds take their defaults in rows of an earlier one."""
        return None if value is None else Speculation(**{**value, "method": Method(value["method"])})
