"""Every error that the tuner raises on purpose, and the exit code each one ends a command with.

    TunerError                          1   something went wrong that we understand
    ├── InputError                      2   what a person wrote cannot be used
    │   ├── ConfigurationError              a setting or an option
    │   ├── WorkloadError                   a workload or prompt file
    │   ├── SearchSpaceError                a search-space file
    │   ├── HardwareError                   a hardware file
    │   ├── ModelError                      a model folder or file, or a name
    │   │   └── TokenizerMismatchError      target and draft do not share token ids
    │   ├── TraceError                      an acceptance trace that is damaged, or of something else
    │   ├── NotFoundError                   no study, trial, workload … of that name
    │   └── StudyMismatchError              the stored study was made with other settings
    ├── EngineError                     3   an engine could not do what it was asked
    │   ├── EngineNotInstalledError         an optional package is missing
    │   ├── UnsupportedConfigurationError   refused before anything was spent
    │   ├── CompileError
    │   ├── OutOfDeviceMemoryError
    │   ├── EngineCrashedError              its process ended by itself
    │   ├── OutputMismatchError             greedy output differs from the target alone
    │   └── MeasurementError                what was observed contradicts itself
    ├── StorageError                    4   the database
    │   ├── StorageUnreachableError         its server does not answer
    │   └── SchemaError                     its schema is older or newer than this program
    ├── DispatchError                   5   the machines
    │   ├── StageTimeoutError
    │   ├── WorkerLostError
    │   ├── UnsatisfiableError              no machine offers what a stage needs
    │   ├── FragmentedDevicesError          a stage was given devices that are not adjacent
    │   └── ArtifactError                   a compiled artifact cannot be kept, or not be read back
    │       └── ArtifactMissingError        it is gone: it is compiled again
    ├── DownloadError                   6   a model could not be fetched
    └── SearchStoppedError            130   somebody asked it to stop

``docs/errors.md`` says what to do about each.
"""

from __future__ import annotations

from typing import ClassVar


class TunerError(Exception):
    """Base of all errors of this package.

    Arguments are positional so that the error survives pickling between processes.

    Args:
        message: What is wrong, with the offending value and where it was found.
        hint: What to do next: a command to run or an edit to make.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class InputError(TunerError):
    """What a person wrote cannot be used."""

    exit_code = 2


class ConfigurationError(InputError):
    """A setting, an option or a combination of them is not valid."""


class WorkloadError(InputError):
    """A workload or prompt file cannot be used."""


class SearchSpaceError(InputError):
    """A search-space file cannot be used."""


class HardwareError(InputError):
    """A hardware file cannot be used."""


class ModelError(InputError):
    """A model folder, file or name cannot be used."""


class TokenizerMismatchError(ModelError):
    """Target and draft do not give the same ids to the same text."""


class TraceError(InputError):
    """An acceptance trace is damaged, contradicts itself, or is of something else; it is never used."""


class NotFoundError(InputError):
    """Nothing of that name exists."""


class StudyMismatchError(InputError):
    """The stored study was made with other settings than those given now."""


class EngineError(TunerError):
    """An engine could not do what it was asked."""

    exit_code = 3


class EngineNotInstalledError(EngineError):
    """An engine or one of its optional packages is not installed."""


class UnsupportedConfigurationError(EngineError):
    """An engine refuses a configuration before anything is spent on it."""


class CompileError(EngineError):
    """A configuration does not compile."""


class OutOfDeviceMemoryError(EngineError):
    """A configuration does not fit the device."""


class EngineCrashedError(EngineError):
    """The process of an engine ended by itself."""


class OutputMismatchError(EngineError):
    """Speculation changed a greedy output by more than the numerics explain."""


class MeasurementError(EngineError):
    """What was observed contradicts itself and must not become a number."""


class StorageError(TunerError):
    """The database cannot be reached, read or written."""

    exit_code = 4


class StorageUnreachableError(StorageError):
    """The database's server does not answer, or was lost."""


class SchemaError(StorageError):
    """The database's schema is older or newer than this program."""


class DispatchError(TunerError):
    """A stage could not be run where it was sent."""

    exit_code = 5


class StageTimeoutError(DispatchError):
    """A stage ran longer than its deadline and was ended."""


class WorkerLostError(DispatchError):
    """The process or node that ran a stage is gone."""


class UnsatisfiableError(DispatchError):
    """No machine offers what a stage needs."""


class FragmentedDevicesError(DispatchError):
    """A stage was given devices that are not adjacent; it was not started."""


class ArtifactError(DispatchError):
    """A compiled artifact cannot be kept, or not be read back."""


class ArtifactMissingError(ArtifactError):
    """A compiled artifact is not where it was left; compiling again makes it anew."""


class DownloadError(TunerError):
    """A model could not be fetched."""

    exit_code = 6


class SearchStoppedError(TunerError):
    """A search was asked to stop before its end; what was finished is kept."""

    exit_code = 130
