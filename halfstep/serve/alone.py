"""Each file in a process of its own, as `halfstep serve-bench` times it: start, memory, single calls and throughput.

What is found here is printed. Nothing is judged by it, but the number of threads is chosen here, which is then timed in
turns with Keras.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from halfstep.errors import one_line
from halfstep.machine import fingerprint
from halfstep.results.serving import Alone, Export, ServedArm
from halfstep.serve import bench
from halfstep.system.commands import run_program
from halfstep.system.telling import say
from halfstep.words.formats import FORMATS

THROUGHPUT_SIZES = (1, 8, 32, 128)
_CLEARLY_FASTER = 0.95  # of the time with the default number of threads
_LIMIT_S, _SECONDS = 300.0, 0.15  # of timing at each batch size
_ONE_THREAD = ("litert",)  # what begins so has one thread by default, others as many as there are cores


@dataclass(frozen=True)
class Program:
    """How files are timed.

    Attributes:
        folder: to which the paths of `results.serving` are relative.
        inputs: the file with the flat inputs.
        python: the interpreter with the runtimes; None: this one.
        variables: environment variables.
        threads: of every runtime, where the variant says so.
    """

    folder: Path
    inputs: Path
    python: str | None
    variables: Mapping[str, str]
    threads: int | None = None

    def alone(self, item: Export, threads: int | None, batch_sizes: Sequence[int]) -> Alone | None:
        """Times a file; None, with a line, if that does not work."""
        options = ["--inputs", str(self.inputs), "--json", "--seconds", f"{_SECONDS}"]
        options += ["--batch", *map(str, batch_sizes)]
        options += [] if threads is None else ["--threads", str(threads)]
        options += ["--precision", precision] if (precision := FORMATS[item.format].precision) else []
        command = [self.python or sys.executable, bench.__file__, str(self.folder / str(item.file)), *options]
        ended = run_program(command, _LIMIT_S, {**self.variables, "TF_CPP_MIN_LOG_LEVEL": "3"})
        if ended.status == 0:
            return Alone.model_validate(json.loads(ended.stdout))
        why = one_line(ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else f"status {ended.status}")
        say("serve", f"{item.label} could not be timed in a process of its own: {why}")
        return None


def arms_of(exports: Sequence[Export], batch_sizes: Sequence[int], program: Program) -> Iterator[ServedArm]:
    """What is timed of the formats that work: the defaults of each runtime, and another number of threads if faster."""
    for item in exports:
        if FORMATS[item.format].is_keras_file:
            yield ServedArm(format=item.format)
            continue
        found = program.alone(item, program.threads, batch_sizes)
        yield ServedArm(format=item.format, threads=program.threads, alone=found)
        cores = fingerprint.usable_cores()
        other = cores if item.format.startswith(_ONE_THREAD) else 1
        if found is None or program.threads is not None or cores == 1 or item.format == "saved_model":
            continue
        tried = program.alone(item, other, batch_sizes[:1])
        if tried is not None and tried.batches[0].p50_ms < _CLEARLY_FASTER * found.batches[0].p50_ms:
            yield ServedArm(format=item.format, threads=other, alone=tried)


def with_throughput(arms: Sequence[ServedArm], exports: Sequence[Export], program: Program) -> tuple[ServedArm, ...]:
    """The arms, of which the two with the fastest calls have their times at each of `THROUGHPUT_SIZES`."""
    known = {item.format: item for item in exports}
    timed = sorted((arm for arm in arms if arm.alone), key=lambda arm: arm.alone.batches[0].p50_ms if arm.alone else 0)
    whole = dict[str, Alone]()
    for arm in timed[:2]:
        assert arm.alone is not None, "these have been timed"
        sizes = [size for size in THROUGHPUT_SIZES if size not in {one.batch_size for one in arm.alone.batches}]
        if sizes and (more := program.alone(known[arm.format], arm.threads, sizes)):
            batches = sorted((*arm.alone.batches, *more.batches), key=lambda one: one.batch_size)
            whole[arm.name] = arm.alone.model_copy(update={"batches": tuple(batches)})
    return tuple(arm.model_copy(update={"alone": whole.get(arm.name, arm.alone)}) for arm in arms)
