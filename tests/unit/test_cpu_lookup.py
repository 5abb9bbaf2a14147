"""Looking up a request's own text, slot by slot."""

from __future__ import annotations

from functools import partial

import torch

from tuner.engines.cpu.drafters import Ask
from tuner.engines.cpu.lookup import LookupDrafter
from tuner.proposers import NgramIndex

NOTHING = torch.empty(0)


def a_drafter(longest: int) -> LookupDrafter:
    return LookupDrafter(partial(NgramIndex, longest, 1))


def test_a_slot_forgets_its_former_request() -> None:
    drafter = a_drafter(2)
    drafter.start(0, [1, 2, 1], NOTHING)
    assert drafter.propose([Ask(0, [1, 2, 1], 3)]) == [[2, 1]]
    drafter.start(0, [9, 1], NOTHING)
    assert drafter.propose([Ask(0, [9, 1], 3)]) == [[]]


def test_replay_begins_with_the_second_token_and_disturbs_no_slot() -> None:
    drafter = a_drafter(1)
    drafter.start(0, [7, 8, 7], NOTHING)
    replayed = drafter.replay([4, 5, 4, 5, 6, 5], 2, 3, NOTHING)
    assert replayed.proposed == (0, 2, 2, 0)
    assert replayed.matched == (0, 1, 0, 0)
    assert drafter.propose([Ask(0, [7, 8, 7], 3)]) == [[8, 7]]
