"""``tuner mix``: one configuration for several workloads, and what one for each would add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.arguments import AsJson, Storage, new_app
from tuner.errors import ConfigurationError

if TYPE_CHECKING:
    from tuner.mix import Mix

app = new_app()


@app.command("mix")
def mix(
    parts: Annotated[
        list[str],
        typer.Argument(
            metavar="STUDY[=WEIGHT]",
            show_default=False,
            help="Studies of one target and search space, each with its share of the requests; 1 where none is given.",
        ),
    ],
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Choose one configuration for several workloads, and say what one for each would add."""
    from tuner import mix_report
    from tuner.cli.output import print_json, stdout_console

    found = _mixed(_weights(parts), storage)
    if as_json:
        print_json(mix_report.mix_document(found))
        return
    console = stdout_console()
    console.print(mix_report.mix_sentence(found), style="bold", soft_wrap=True)
    for note in mix_report.mix_notes(found):
        console.print(f"  {note}", soft_wrap=True)
    console.print(mix_report.mix_table(found))


def _weights(parts: Sequence[str]) -> dict[str, float]:
    """Weights by study.

    Raises:
        ConfigurationError: A weight is no positive number, a study is named twice, or there is only one.
    """
    weights: dict[str, float] = {}
    for part in parts:
        name, separator, weight = part.rpartition("=")
        study = name if separator else part
        if study in weights:
            raise ConfigurationError(f"study {study!r} is named twice", "name each study once, with its whole weight")
        weights[study] = _weight(part, weight) if separator else 1.0
    if len(weights) < 2:
        raise ConfigurationError(
            f"a mix needs two studies or more, only {parts[0]!r} is named", "tuner studies lists what there is"
        )
    return weights


def _weight(part: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise ConfigurationError(f"the weight in {part!r} is no number above 0", "write STUDY=WEIGHT, e.g. chat-1=0.7")
    return weight


def _mixed(weights: dict[str, float], storage: str | None) -> Mix:
    from tuner.api import open_result
    from tuner.decide import DEFAULT_MARGIN
    from tuner.mix import mix
    from tuner.mix_studies import check_mixable, mix_workload

    studies = [open_result(name, storage) for name in weights]
    check_mixable([one.study for one in studies])
    margin = max(float(one.study.spec.get("margin", DEFAULT_MARGIN)) for one in studies)
    workloads = [
        mix_workload(
            one.study,
            one.trials,
            one.predictions,
            baseline=None if one.baseline_result is None else one.baseline_result.measurement,
            traces=[result.trace for result in one.traces],
            weight=weight,
        )
        for one, weight in zip(studies, weights.values(), strict=True)
    ]
    return mix(workloads, margin=margin)
