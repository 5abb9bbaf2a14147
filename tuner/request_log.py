"""An engine's events, folded into one record per request; whatever contradicts itself is refused here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.errors import MeasurementError
from tuner.records import Arrival, Chunk, Event, Failed, Finished, RequestRecord, Sent


class RequestLog:
    """Takes in the events of one run and gives back one record per request.

    Args:
        arrivals: The requests of the run.
        concurrency: Most that may be in flight.
    """

    def __init__(self, arrivals: Sequence[Arrival], concurrency: int) -> None:
        self._concurrency = concurrency
        self._records = {
            arrival.request_id: RequestRecord(
                request_id=arrival.request_id,
                prompt_id=arrival.prompt.prompt_id,
                prompt_class=arrival.prompt.prompt_class,
                max_output_tokens=arrival.max_output_tokens,
                sent_s=0.0,
                error="the engine never took the request",
            )
            for arrival in arrivals
        }
        self._in_flight: set[str] = set()
        self._chunks: dict[str, list[Chunk]] = {}

    def add(self, event: Event) -> None:
        """Take in one event.

        Raises:
            MeasurementError: It belongs to no request in flight, or more are in flight than were asked for.
        """
        if isinstance(event, Sent):
            self._sent(event)
            return
        if event.request_id not in self._in_flight:
            raise MeasurementError(
                f"the engine reported {type(event).__name__} for {event.request_id!r}, which is not in flight",
                "this is a fault of the engine",
            )
        if isinstance(event, Chunk):
            self._chunk(event)
        else:
            self._ended(event)

    def _sent(self, event: Sent) -> None:
        if event.request_id not in self._records or event.request_id in self._chunks:
            raise MeasurementError(f"the engine took request {event.request_id!r} twice, or made it up")
        self._in_flight.add(event.request_id)
        if len(self._in_flight) > self._concurrency:
            raise MeasurementError(
                f"{len(self._in_flight)} requests are in flight, {self._concurrency} were asked for",
                "this is a fault of the engine: run() was told how many it may serve at once",
            )
        self._chunks[event.request_id] = []
        self._replace(event.request_id, sent_s=event.at_s, error="the engine ended without finishing the request")

    def _chunk(self, event: Chunk) -> None:
        if event.token_ids and len(event.token_ids) != event.num_tokens:
            raise MeasurementError(
                f"a chunk of request {event.request_id} has {len(event.token_ids)} ids for {event.num_tokens} tokens"
            )
        if event.num_tokens > 0:  # a role, an empty or a usage event is no token
            self._chunks[event.request_id].append(event)

    def _ended(self, event: Finished | Failed) -> None:
        self._in_flight.remove(event.request_id)
        if isinstance(event, Failed):
            self._replace(event.request_id, error=event.error or "failed without a reason")
            return
        self._replace(
            event.request_id,
            error=None,
            finish_reason=event.reason,
            prompt_tokens=event.prompt_tokens,
            output_tokens=event.output_tokens,
            rounds=event.rounds,
            drafted_tokens=event.drafted_tokens,
            accepted_tokens=event.accepted_tokens,
        )

    def _replace(self, request_id: str, **changes: object) -> None:
        self._records[request_id] = replace(self._records[request_id], **changes)  # type: ignore[arg-type]

    def records(self) -> list[RequestRecord]:
        """One record per arrival, in order of sending; those never sent come last."""
        whole = [self._with_chunks(request_id) for request_id in self._chunks]
        return whole + [record for request_id, record in self._records.items() if request_id not in self._chunks]

    def _with_chunks(self, request_id: str) -> RequestRecord:
        chunks = self._chunks[request_id]
        return replace(
            self._records[request_id],
            chunks=tuple((chunk.at_s, chunk.num_tokens) for chunk in chunks),
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        )
