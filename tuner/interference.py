"""How long requests in flight hold each other up.

An engine that reads a new prompt between two rounds lets every other request wait for it. That happens as often as
requests begin, so about once for each of the others during a request's life, and not once a round: with fewer rounds it
stays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.metrics import MS_PER_S, decode_ms, decoded_tokens
from tuner.records import Measurement


def held_up_ms(baseline: Measurement, pass_ms: float) -> dict[str, float]:
    """Time that each request of at least two chunks waited for others' prompts after its first token, by its id.

    The time of its decoding in which prompts of others were read, but no more than it took beyond its passes: engines
    that read prompts within their rounds make nobody wait.

    Args:
        baseline: Without speculation, every token took a pass.
        pass_ms: Timed, of as many requests as were in flight.
    """
    requests = [record for record in baseline.requests if decode_ms(record) is not None]
    began, ended = (np.array([record.chunks[place][0] for record in requests]) for place in (0, -1))
    sent = np.array([record.sent_s for record in requests])
    waited = MS_PER_S * _overlaps(began, ended, sent, began).sum(axis=1)
    beyond = np.array([(decode_ms(record) or 0.0) - pass_ms * decoded_tokens(record) for record in requests])
    shares = np.clip(waited, 0.0, np.maximum(beyond, 0.0))
    return {record.request_id: float(one) for record, one in zip(requests, shares, strict=True)}


def _overlaps(
    begins: NDArray[np.float64], ends: NDArray[np.float64], from_s: NDArray[np.float64], to_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Time that each interval shares with each of others: [intervals, others]."""
    shared = np.minimum(ends[:, None], to_s[None, :]) - np.maximum(begins[:, None], from_s[None, :])
    overlaps: NDArray[np.float64] = np.maximum(shared, 0.0)
    return overlaps
