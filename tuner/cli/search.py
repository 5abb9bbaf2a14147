"""``tuner search``: the main job, from a workload's name to a verdict."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tuner.cli import search_options as options
from tuner.cli.arguments import AsJson, Storage, new_app

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.driver import SearchResult
    from tuner.search_options import SearchOptions

app = new_app()


@app.command("search")
def search(
    *,
    workload: options.Workload,
    target: options.Target = None,
    draft: options.Drafts = None,
    prompts: options.Prompts = None,
    space: options.Space = "cpu-default",
    quick: options.Quick = False,
    objective: options.Objectives = None,
    sampler: options.Sampler = "replay",
    seed: options.Seed = 0,
    name: options.Name = None,
    epsilon: options.Epsilon = 0.01,
    trials: options.Trials = None,
    max_compiles: options.MaxCompiles = None,
    max_minutes: options.MaxMinutes = None,
    max_cost: options.MaxCost = None,
    price_per_hour: options.PricePerHour = None,
    certify_loads: options.CertifyLoads = 1,
    margin: options.Margin = 0.02,
    threads: options.Threads = None,
    weight_format: options.WeightFormat = "auto",
    stage_deadline: options.StageDeadline = None,
    hardware: options.Hardware = "cpu",
    parallel: options.Parallel = None,
    artifacts: options.Artifacts = None,
    wait_for_nodes: options.WaitForNodes = None,
    retry_failed: options.RetryFailed = False,
    ray_address: options.RayAddress = None,
    dispatch: options.Dispatch = "ray",
    storage: Storage = None,
    plot: options.Plot = None,
    plan: options.Plan = False,
    as_json: AsJson = False,
) -> None:
    """Find out whether speculation pays off for a workload, and which.

    An interrupted search goes on with the same command. "Do not speculate" is a possible verdict, and so is
    "inconclusive"; both end with exit code 0.
    """
    given = dict(locals())
    from tuner.text_files import check_folder

    asked = options.asked(given)
    if plot is not None:
        check_folder(plot)
    if plan:
        _show_plan(asked, as_json=as_json)
        return
    _show_result(_run(asked, as_json=as_json), plot, as_json=as_json)


def _run(asked: SearchOptions, *, as_json: bool) -> SearchResult:
    from tuner.api import run_search
    from tuner.cli.progress import run_observed

    return run_observed(lambda observer: run_search(asked, observer), "what was measured", as_json=as_json)


def _show_plan(asked: SearchOptions, *, as_json: bool) -> None:
    from tuner.api import describe_plan
    from tuner.cli.output import print_json, stdout_console
    from tuner.documents import plan_document
    from tuner.report import plan_sentences, plan_table

    plan = describe_plan(asked)
    if as_json:
        print_json(plan_document(plan))
        return
    console = stdout_console()
    console.print(plan_table(plan))
    for line in plan_sentences(plan):
        console.print(line)


def _show_result(result: SearchResult, plot: Path | None, *, as_json: bool) -> None:
    from tuner.cli.output import print_json
    from tuner.cli.stored import drawn, print_result
    from tuner.documents import result_document
    from tuner.study_charts import write_study

    path = drawn(result.study.name, plot, partial(write_study, result), as_json=as_json)
    if as_json:
        print_json({**result_document(result), "plot": None if path is None else str(path)})
        return
    print_result(result, path)
