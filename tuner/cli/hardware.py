"""``tuner hardware``: the machines that come with the package, and whether a file of your own is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.arguments import new_app

if TYPE_CHECKING:
    from tuner.hardware import Hardware
    from tuner.records import StageKind

app = new_app(no_args_is_help=True, help="List, show and check hardware.")

Reference = Annotated[str, typer.Argument(metavar="HARDWARE", help="Name of shipped hardware, or a .yaml file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("list")
def list_hardware(as_json: AsJson = False) -> None:
    """List the hardware that comes with the package."""
    from tuner.cli.output import print_json
    from tuner.hardware import hardware_names, read_hardware

    found = [read_hardware(name) for name in hardware_names()]
    if as_json:
        print_json({"hardware": [_summary(hardware) for hardware in found]})
        return
    _print_list(found)


@app.command("show")
def show_hardware(reference: Reference, as_json: AsJson = False) -> None:
    """Show what machines there are, and what each kind of stage holds of them."""
    from tuner.cli.output import print_json
    from tuner.hardware import read_hardware

    hardware = read_hardware(reference)
    if as_json:
        print_json({**hardware.model_dump(mode="json"), "stages": _stages(hardware)})
        return
    _print_hardware(hardware)


@app.command("check", short_help="Say what is wrong with a hardware file.")
def check_hardware(reference: Reference, as_json: AsJson = False) -> None:
    """Read a hardware file, and say what is wrong with it or what its machines take at once."""
    from tuner.cli.output import print_json
    from tuner.hardware import read_hardware
    from tuner.records import StageKind

    hardware = read_hardware(reference)
    if as_json:
        print_json({"ok": True, **_summary(hardware)})
        return
    measured = hardware.per_machine(StageKind.MEASURE)
    configurations = "configuration" if measured == 1 else "configurations"
    typer.echo(f"ok: {hardware.name} measures {measured} {configurations} at once on each machine")


def _summary(hardware: Hardware) -> dict[str, Any]:
    from tuner.records import StageKind

    return {
        "name": hardware.name,
        "description": hardware.description,
        "device": hardware.device,
        "devices_per_machine": hardware.devices_per_machine,
        "block": hardware.block,
        "price_per_hour": hardware.price_per_hour,
        "currency": hardware.currency,
        "measured_at_once": hardware.per_machine(StageKind.MEASURE),
    }


def _stages(hardware: Hardware) -> dict[str, Any]:
    """What each kind of stage holds, defaults filled in."""
    from tuner.hardware import EVERY_CPU
    from tuner.plan import STAGE_DEADLINE_S
    from tuner.records import StageKind

    held = {kind: hardware.needs(kind) for kind in StageKind}
    return {
        str(kind): {
            "num_cpus": EVERY_CPU if needs.num_cpus is None else needs.num_cpus,
            "device": needs.device,
            "num_devices": needs.num_devices,
            "on_device_host": needs.on_device_host,
            "memory_bytes": needs.memory_bytes,
            "resources": dict(needs.resources),
            "environment": dict(needs.environment),
            "deadline_s": hardware.deadline_s(kind, STAGE_DEADLINE_S),
            "per_machine": hardware.per_machine(kind),
        }
        for kind, needs in held.items()
    }


def _print_list(found: list[Hardware]) -> None:
    from rich.table import Table

    from tuner.cli.output import stdout_console
    from tuner.records import StageKind

    table = Table("Hardware", "What it is", "Device", box=None, pad_edge=False)
    for title in ("On a machine", "Block", "Measured at once"):
        table.add_column(title, justify="right")
    for hardware in found:
        counts = (hardware.devices_per_machine, hardware.block if hardware.device else None)
        shown = ["-" if count is None else str(count) for count in counts]
        at_once = str(hardware.per_machine(StageKind.MEASURE))
        table.add_row(hardware.name, hardware.description, hardware.device or "-", *shown, at_once)
    stdout_console().print(table)


def _print_hardware(hardware: Hardware) -> None:
    from rich.table import Table

    from tuner.cli.output import stdout_console
    from tuner.plan import STAGE_DEADLINE_S
    from tuner.records import StageKind
    from tuner.report import duration

    console = stdout_console()
    console.print(f"{hardware.name}: {hardware.description}", soft_wrap=True)
    for line in _sentences(hardware):
        console.print(line, soft_wrap=True)
    table = Table("Stage", "Holds", box=None, pad_edge=False)
    for title in ("At once on a machine", "Ended after"):
        table.add_column(title, justify="right")
    for kind in StageKind:
        deadline = duration(hardware.deadline_s(kind, STAGE_DEADLINE_S))
        table.add_row(str(kind), _holds(hardware, kind), str(hardware.per_machine(kind)), deadline)
    console.print(table)


def _holds(hardware: Hardware, kind: StageKind) -> str:
    needs = hardware.needs(kind)
    variables = f", with {', '.join(sorted(needs.environment))} set" if needs.environment else ""
    return f"{needs}{variables}"


def _sentences(hardware: Hardware) -> Iterator[str]:
    if hardware.device is not None:
        here = "" if hardware.devices_per_machine is None else f"{hardware.devices_per_machine} on each machine, "
        yield f"device {hardware.device}: {here}one configuration on {hardware.block}"
        yield f"compiles run on {'machines with devices' if hardware.compile_on == 'device_host' else 'any machine'}"
    price = "not known; write price_per_hour into a copy of the file, or give --price-per-hour"
    if hardware.price_per_hour is not None:
        price = f"{hardware.price_per_hour:g} {hardware.currency} an hour"
    yield f"price of a machine: {price}"
    if hardware.compile_price_per_hour is not None:
        yield f"price of a machine that compiles: {hardware.compile_price_per_hour:g} {hardware.currency} an hour"
    if hardware.artifacts is not None:
        yield f"compiled artifacts are shared in {hardware.artifacts}"
    if hardware.node_cache_gb is not None:
        yield f"compiled artifacts on each machine: {hardware.node_cache_gb:g} GB at most"
    if hardware.wait_for_nodes_s is not None:
        yield f"machines that are not there yet are awaited for {hardware.wait_for_nodes_s:g} s"
    if hardware.compile_facts:
        yield f"compiled for {', '.join(f'{name} {value}' for name, value in sorted(hardware.compile_facts.items()))}"
