"""The schema as SQL, for people who read the database with other tools: ``storage/schema.sql``.

    python -m tuner_storage.schema > storage/schema.sql

makes the file anew after a change of the tables.
"""

from __future__ import annotations

import sys

from sqlalchemy import Dialect, make_url
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement

from tuner_storage.migrate import VERSION_TABLE
from tuner_storage.tables import Base

RENEW = "python -m tuner_storage.schema > storage/schema.sql"


def schema_sql() -> str:
    """The statements that make the tables, on each database."""
    head = f"-- Made by `{RENEW}`; {VERSION_TABLE} is kept by Alembic.\n"
    return head + "".join(_section(make_url(url).get_dialect()()) for url in ("sqlite://", "postgresql+psycopg://"))


def _section(dialect: Dialect) -> str:
    made: list[DDLElement] = []
    for table in Base.metadata.sorted_tables:
        made += [CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=lambda index: str(index.name)))]
    statements = [str(one.compile(dialect=dialect)).strip() for one in made]
    lines = "\n".join(line.rstrip().replace("\t", "    ") for line in ";\n\n".join(statements).splitlines())
    return f"\n-- {dialect.name}\n\n{lines};\n"


if __name__ == "__main__":
    sys.stdout.write(schema_sql())
