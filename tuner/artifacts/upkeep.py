"""Looking after a place of artifacts: what is in it, what of it is damaged, and what may go."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tuner.artifacts.manifest import Damage, Manifest
from tuner.artifacts.places import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What pruning removed, or would remove.

    Attributes:
        in_use: What should have gone and is in use.
    """

    removed: tuple[Manifest, ...] = ()
    in_use: tuple[Manifest, ...] = ()
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What verifying found.

    Attributes:
        removed: The damaged ones that were removed.
    """

    good: tuple[Manifest, ...]
    damaged: tuple[Damage, ...]
    removed: tuple[Damage, ...] = ()


def prune(
    place: Place,
    *,
    max_bytes: int | None = None,
    unused_for: timedelta | None = None,
    keep: str | None = None,
    dry_run: bool = False,
) -> Removal:
    """Remove artifacts, the least recently used first, never one that is in use.

    Args:
        place: Where.
        max_bytes: Remove until no more than this is left; 0 removes everything.
        unused_for: Remove what was not used for that long.
        keep: Content that stays.
        dry_run: Only say what would go.
    """
    by_content: dict[str, list[Manifest]] = defaultdict(list)
    for one in place.manifests():
        if isinstance(one, Manifest):
            by_content[one.content_hash].append(one)
        elif max_bytes == 0 and not dry_run:
            place.forget(one.key)
    oldest_first = sorted(by_content.values(), key=lambda group: place.last_used_at(group[0]))
    left = sum(group[0].size_bytes for group in oldest_first)
    now = datetime.now(UTC)
    removed: list[Manifest] = []
    in_use: list[Manifest] = []
    freed = 0
    for group in oldest_first:
        one = group[0]
        is_too_much = max_bytes is not None and (left > max_bytes or max_bytes == 0)
        is_too_old = unused_for is not None and now - place.last_used_at(one) > unused_for
        if one.content_hash == keep or not (is_too_much or is_too_old):
            continue
        is_free = not place.in_use(one.content_hash) if dry_run else place.remove(one.content_hash)
        (removed if is_free else in_use).extend(group)
        if is_free:
            left -= one.size_bytes
            freed += one.size_bytes
    return Removal(removed=tuple(removed), in_use=tuple(in_use), freed_bytes=freed)


def verify(place: Place, *, remove_damaged: bool = False) -> Inspection:
    """Hash every file of every artifact.

    Args:
        place: Where.
        remove_damaged: Remove what is damaged, unless it is in use.
    """
    good: list[Manifest] = []
    damaged: list[Damage] = []
    removed: list[Damage] = []
    for one in place.manifests():
        damage = one if isinstance(one, Damage) else place.damage(one, reread=True)
        if damage is None and isinstance(one, Manifest):
            good.append(one)
        elif damage is None or place.manifest(one.key) != one:  # pruned or renewed meanwhile
            continue
        elif remove_damaged and _remove(place, one):
            removed.append(damage)
        else:
            damaged.append(damage)
    return Inspection(good=tuple(good), damaged=tuple(damaged), removed=tuple(removed))


def _remove(place: Place, damaged: Manifest | Damage) -> bool:
    if isinstance(damaged, Damage):
        place.forget(damaged.key)
        return True
    return place.remove(damaged.content_hash)
