"""What runs as a stage's process: reads the task from stdin, runs it, and writes what comes of it into a file.

Messages are pickled pairs behind eight bytes of length: ``("progress", (done, total))`` as often as there is one, and
at the end exactly one of ``("result", bytes)``, ``("error", TunerError)`` and ``("bug", traceback)``. They go into a
file and not a pipe, so that a result of any size is written whether or not somebody reads.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import struct
import sys
import traceback
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.errors import TunerError
    from tuner.trial import StageTask

Message = tuple[str, Any]

_LENGTH = struct.Struct("!Q")


def main(arguments: Sequence[str]) -> None:
    """Run the task that stdin holds; ``arguments`` is the descriptor of the file for messages."""
    messages = int(arguments[0])
    os.set_inheritable(messages, False)
    faulthandler.enable()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("tuner").setLevel(logging.INFO)
    task = read_task(sys.stdin.buffer)
    kind, value = _outcome(task, messages)
    sys.stdout.flush()
    sys.stderr.flush()
    write_message(messages, kind, value)
    os._exit(0)  # threads and exit handlers of an engine's libraries may hang


def write_task(file: IO[bytes], task: StageTask) -> None:
    """Write what ``main`` reads: where this process imports from, then the task."""
    pickle.dump([os.path.abspath(path) for path in sys.path], file)  # noqa: PTH100
    pickle.dump(task, file)


def read_task(file: IO[bytes]) -> StageTask:
    """The task, after importing has been made to find what the owner finds, too."""
    paths: list[str] = pickle.load(file)  # noqa: S301 - written by the owner of this process
    sys.path += [path for path in paths if path not in sys.path]
    task: StageTask = pickle.load(file)  # noqa: S301
    return task


def write_message(descriptor: int, kind: str, value: object) -> None:
    """Append one message."""
    body = pickle.dumps((kind, value))
    left = memoryview(_LENGTH.pack(len(body)) + body)
    while left:
        left = left[os.write(descriptor, left) :]


def read_message(descriptor: int, offset: int) -> tuple[Message, int] | None:
    """The message at ``offset`` of a file and where the next one begins; None where it is not whole yet."""
    head = os.pread(descriptor, _LENGTH.size, offset)
    if len(head) < _LENGTH.size:
        return None
    begin, (length,) = offset + _LENGTH.size, _LENGTH.unpack(head)
    if os.fstat(descriptor).st_size < begin + length:
        return None
    body = b""
    while len(body) < length:
        body += os.pread(descriptor, length - len(body), begin + len(body))
    message: Message = pickle.loads(body)  # noqa: S301 - written by a process that we started
    return message, begin + length


def _outcome(task: StageTask, messages: int) -> Message:
    from tuner.errors import TunerError
    from tuner.trial import run_stage

    try:
        return "result", run_stage(task, lambda done, total: write_message(messages, "progress", (done, total)))
    except TunerError as error:
        traceback.print_exc()
        return "error", _as_ours(error)
    except Exception:  # noqa: BLE001 - a bug, which the owner raises
        traceback.print_exc()
        return "bug", traceback.format_exc()


def _as_ours(error: TunerError) -> TunerError:
    """Of the nearest class that is ours: where the search runs, a third party's engine may not be installed."""
    from tuner.errors import TunerError

    ours = next(kind for kind in type(error).__mro__ if kind.__module__ == TunerError.__module__)
    return ours(error.message, error.hint)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(sys.argv[1:])
