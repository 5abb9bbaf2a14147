"""``tuner best``: what a study recommends, in a sentence."""

from __future__ import annotations

from tuner.cli.arguments import AsJson, Storage, StudyName, new_app

app = new_app()


@app.command("best")
def best(study: StudyName = None, storage: Storage = None, as_json: AsJson = False) -> None:
    """Say what a study recommends: a configuration, or not to speculate."""
    from tuner import documents, report
    from tuner.api import open_result
    from tuner.cli.output import print_json, stdout_console

    result = open_result(study, storage)
    if as_json:
        wanted = ("study", "verdict", "sentence", "recommended", "decision")
        document = documents.result_document(result)
        print_json({name: document[name] for name in wanted})
        return
    console = stdout_console()
    console.print(f"study {result.study.name}", soft_wrap=True)
    console.print(documents.verdict_sentence(result), style="bold", soft_wrap=True)
    for note in report.verdict_notes(result):
        console.print("  ", note, sep="", soft_wrap=True)
    for line in report.next_steps(result):
        console.print(f"next: {line}", soft_wrap=True)
