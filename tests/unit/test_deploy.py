"""The manifests of ``deploy/kuberay`` against schemas, against Ray's own command line, and against each other."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer

from tests.support.kuberay import FOLDER, groups, ray_start, read_manifest
from tuner.cli.main import app
from tuner.hardware import read_hardware

ROOT = Path(__file__).parents[2]
KUBERNETES_VERSIONS = ("1.31", "1.37")
"""The first with ``podFailurePolicy`` for good, and the newest that the schemas are there for."""

TOKEN = {"secretKeyRef": {"name": "tuner-ray", "key": "auth_token"}}


def job() -> dict[str, Any]:
    return read_manifest("tuner-search-job.yaml")


def pod_specs() -> dict[str, dict[str, Any]]:
    return {
        **{name: group["template"]["spec"] for name, group in groups().items()},
        "driver": job()["spec"]["template"]["spec"],
    }


def environment(spec: dict[str, Any]) -> dict[str, Any]:
    (container,) = spec["containers"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


# ── schemas ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("name", ["tuner-search-job.yaml", "shared-volume.yaml"])
def test_what_kubernetes_itself_reads_is_valid(name: str, version: str) -> None:
    kubernetes_validate.validate(read_manifest(name), version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("name", groups())
def test_the_pod_template_of_each_group_is_valid(name: str, version: str) -> None:
    document = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}}
    kubernetes_validate.validate({**document, "template": groups()[name]["template"]}, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    wrong = job()
    wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError, match="imagee"):
        kubernetes_validate.validate(wrong, KUBERNETES_VERSIONS[-1], strict=True)


def test_the_fields_of_the_ray_cluster_are_those_of_its_kind() -> None:
    schema = json.loads((ROOT / "tests" / "data" / "kuberay-raycluster.schema.json").read_text())
    jsonschema.validate(read_manifest("raycluster-trn2.yaml"), schema)


# ── Ray ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", groups())
def test_ray_start_takes_the_parameters_of_each_group(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Ray says at its import is its own
        from ray.scripts.scripts import start
    words = shlex.split(ray_start(groups()[name]["rayStartParams"], head=name == "head"))
    parsed = start.make_context("start", words[2:]).params
    assert parsed["block"]
    assert isinstance(json.loads(parsed["resources"]), dict)


def test_a_machine_offers_what_the_hardware_counts_with() -> None:
    hardware = read_hardware("trn2.48xlarge")
    group = groups()["trn2"]
    words = dict(
        word.split("=", 1) for word in shlex.split(ray_start(group["rayStartParams"], head=False)) if "=" in word
    )
    assert json.loads(words["--resources"]) == {"neuron_cores": hardware.devices_per_machine}
    assert int(words["--num-cpus"]) == hardware.cpus_per_machine
    assert group["template"]["spec"]["nodeSelector"]["node.kubernetes.io/instance-type"] == hardware.name


def test_ray_s_own_reader_of_such_clusters_understands_the_resources() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.autoscaler._private.kuberay.autoscaling_config import _get_custom_resources
    parameters = groups()["trn2"]["rayStartParams"]
    assert _get_custom_resources({}, parameters, "trn2") == {"neuron_cores": 64}


def test_neither_the_head_nor_the_driver_offers_a_cpu() -> None:
    assert groups()["head"]["rayStartParams"]["num-cpus"] == "0"
    assert "--num-cpus=0" in job()["spec"]["template"]["spec"]["containers"][0]["args"][0]


# ── each other ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", pod_specs())
def test_every_process_of_ray_wants_the_token_of_one_secret(name: str) -> None:
    found = environment(pod_specs()[name])
    assert found["RAY_AUTH_MODE"] == "token"
    assert found["RAY_AUTH_TOKEN"] == TOKEN


def test_no_secret_is_written_down() -> None:
    for path in FOLDER.glob("*.yaml"):
        assert read_manifest(path.name)["kind"] != "Secret"
    assert environment(pod_specs()["driver"])["TUNER_STORAGE"] == {
        "secretKeyRef": {"name": "tuner-database", "key": "url"}
    }


def test_paths_are_the_same_for_the_driver_and_every_worker() -> None:
    names = ("driver", "trn2", "cpu-compile")
    specs = [pod_specs()[name] for name in names]
    mounts = [{one["mountPath"]: one for one in spec["containers"][0]["volumeMounts"]} for spec in specs]
    for path in ("/models", "/artifacts", "/var/cache/tuner"):
        assert mounts[0][path] == mounts[1][path] == mounts[2][path]
    assert {environment(spec)["TUNER_CACHE"] for spec in specs} == {"/var/cache/tuner"}


def test_the_shared_volume_is_the_one_that_pods_claim() -> None:
    claims = re.findall(r"claimName: ([\w-]+)", "".join(path.read_text() for path in FOLDER.glob("*.yaml")))
    assert set(claims) == {read_manifest("shared-volume.yaml")["metadata"]["name"]}


def test_the_driver_joins_the_cluster_of_the_other_manifest() -> None:
    cluster = read_manifest("raycluster-trn2.yaml")["metadata"]["name"]
    assert environment(pod_specs()["driver"])["RAY_HEAD"] == f"{cluster}-head-svc:6379"


def test_the_driver_s_command_is_one_that_the_tuner_takes() -> None:
    script = pod_specs()["driver"]["containers"][0]["args"][0]
    _, _, words = script.replace("\\\n", " ").partition("exec tuner search ")
    command: Any = typer.main.get_command(app)
    parsed = command.get_command(None, "search").make_context("search", shlex.split(words)).params
    assert parsed["hardware"] == "trn2.48xlarge"
    assert parsed["artifacts"] == "/artifacts"


@pytest.mark.parametrize("name", ["tuner-ray", "tuner-database", "tuner-space"])
def test_the_documentation_says_how_to_make_what_the_manifests_want(name: str) -> None:
    text = (ROOT / "docs" / "cluster.md").read_text()
    assert re.search(rf"kubectl create (secret generic|configmap) {name} ", text)


def test_manifests_are_in_the_source_distribution_and_not_in_the_wheel() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert "/deploy" in targets["sdist"]["include"]
    assert "/deploy" not in targets["wheel"]["include"]
