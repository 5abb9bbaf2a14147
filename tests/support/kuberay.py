"""The manifests of ``deploy/kuberay``, and the command line that KubeRay makes of a group's ``rayStartParams``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "kuberay"


def read_manifest(name: str) -> dict[str, Any]:
    (document,) = yaml.safe_load_all((FOLDER / name).read_text())
    assert isinstance(document, dict)
    return document


def groups() -> dict[str, dict[str, Any]]:
    """The groups of the Ray cluster by name, ``head`` among them."""
    spec = read_manifest("raycluster-trn2.yaml")["spec"]
    return {"head": spec["headGroupSpec"], **{group["groupName"]: group for group in spec["workerGroupSpecs"]}}


def ray_start(parameters: Mapping[str, str], *, head: bool) -> str:
    """What KubeRay has a shell run: each parameter as it is written, in the order of their names, and ``--block``."""
    given = {**parameters, "block": "true"}
    options = [f"--{name}" if value == "true" else f"--{name}={value}" for name, value in sorted(given.items())]
    return " ".join(("ray start --head" if head else "ray start", *options))
