"""Measures this machine's GPU with the project's own modules, and writes everything that a report needs.

    python -m tools.acceptance --out FOLDER [--minutes 15]            on a GPU
    python -m tools.acceptance --out FOLDER --parts resnet50_xla      only some parts, for a longer time each
    python -m tools.acceptance --out FOLDER --cpu                     tiny sizes on the CPU: checks this program

ResNet-20 on images of 32 px and ResNet-50 on images of 224 px, both synthetic, are trained for a few steps in float32
with TF32 (the baseline, and on a GPU its second copy), true float32, mixed_float16 and mixed_bfloat16, without and with
XLA. Each network and XLA setting is a part: two repeats of `profile.runner.measure` with a trace of each arm, on
a GPU one arm at a time, and if there is time left, more repeats for narrower intervals. `FOLDER/acceptance.json` and
`FOLDER/acceptance.md` are written after each part, so a kill loses only the part that runs. The traces stay in
`FOLDER/traces`, what the parts print in `FOLDER/logs`.

A part has a share of the time that is left. One that does not end in it is stopped and listed as not measured; one that
fails is listed with its error, and the others go on. The exit status is 0 if every part was measured.

It needs no DVC, MLflow, git or network, so `halfstep/` and `tools/` can be copied to a machine as a folder. Beside
TensorFlow, with the packages that it needs itself (keras, numpy, protobuf, rich), these must be there: filelock,
nvidia-ml-py, pandas, pillow, psutil, pydantic, pyyaml, ruamel.yaml, scipy, xprof.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from halfstep.compare.case import Case
from halfstep.compare.document import judged
from halfstep.compare.explain.limit import train_limit
from halfstep.compare.study import Study, VariantResult
from halfstep.errors import HalfstepError
from halfstep.machine.fingerprint import fingerprint
from halfstep.params.schema import (
    CompareParams,
    DataParams,
    ModelParams,
    ProfileParams,
    TaskParams,
    TrainParams,
    Variant,
)
from halfstep.prepare.images.pipeline import prepare
from halfstep.profile.records import ArmRecord, Measurement
from halfstep.profile.repeats import Repeats, amounts
from halfstep.profile.runner import MeasurementContext, measure
from halfstep.profile.stopping_rule import tables
from halfstep.profile.summary import summarize
from halfstep.profile.trace import Operation, Trace, read_trace
from halfstep.results.profile import TABLES, Profile, ProfileSummary
from halfstep.results.task import images_task
from halfstep.results.training import Training, TrainingMetrics
from halfstep.stats.speedup import Speedup, train_speedup
from halfstep.system import files
from halfstep.tasks.trial import Trial
from halfstep.words.text import TRAIN
from tools.acceptance_report import markdown

ROOT = Path(__file__).parents[1]
BASELINE, TRUE_FLOAT32 = "float32", "float32_no_tf32"
POLICIES = {BASELINE: "float32", TRUE_FLOAT32: "float32", "mixed_float16": "mixed_float16"}
POLICIES |= {"mixed_bfloat16": "mixed_bfloat16"}
SHORTEST_S = 20.0  # of a part; in less, not even the processes start
DESCRIPTION_S = 180.0
FEWEST_REPEATS, MOST_REPEATS = 2, 8  # an interval needs two
MARGIN = 1.2  # of the time that a repeat is expected to take
TIMING_SHARE = 0.1  # of a part's time; most of the rest is spent on starting, compiling and reading traces
TOP = 5


@dataclass(frozen=True)
class Network:
    """What is trained; `batch_size` is halved on GPUs on which it would not fit."""

    model: str
    image_size: int
    images: int
    batch_size: int


@dataclass(frozen=True)
class Part:
    """One network without or with XLA; `share` is its part of the time, relative to the other parts."""

    name: str
    network: Network
    xla: bool
    share: float


RESNET20, RESNET50 = Network("resnet20", 32, 4096, 128), Network("resnet50", 224, 1024, 128)
TINY = Network("cnn", 8, 64, 8)
# In each repeat every arm compiles its step, one after the other on a GPU: with XLA that takes longest.
GPU_PARTS = (
    Part("resnet20", RESNET20, xla=False, share=3),
    Part("resnet50", RESNET50, xla=False, share=5),
    Part("resnet20_xla", RESNET20, xla=True, share=3),
    Part("resnet50_xla", RESNET50, xla=True, share=6),
)
CPU_PARTS = (Part("tiny", TINY, xla=False, share=1), Part("tiny_xla", TINY, xla=True, share=1))
FULL_BATCH_GIB = 15  # of GPU memory, for ResNet-50 with 128 images

Measured = dict[str, Any]
Start = Callable[[Part, float], Measured]


def entries(*, xla: bool) -> dict[str, Variant]:
    """The arms of a part: entries of `variants` by name."""
    return {
        name: Variant(policy=policy, xla=xla, tf32=name != TRUE_FLOAT32, onednn=True)
        for name, policy in POLICIES.items()
    }


def run(parts: Sequence[Part], out: Path, minutes: float, machine: Measured, start: Start) -> Measured:
    """Measures the parts one after the other, and writes the report after each.

    Args:
        parts: in the order in which they are measured.
        out: folder of the report.
        minutes: for all parts together.
        machine: description of the machine.
        start: measures a part in so many seconds.
    """
    ends_s = time.monotonic() + 60 * minutes
    report: Measured = {"machine": machine, "minutes": minutes, "parts": []}
    for number, part in enumerate(parts):
        left_s = max(0.0, ends_s - time.monotonic())
        limit_s = left_s * part.share / sum(other.share for other in parts[number:])
        facts = {"name": part.name, "network": asdict(part.network), "xla": part.xla}
        if limit_s < SHORTEST_S:
            result: Measured = {"not_measured": f"only {limit_s:.0f} s were left for it"}
        else:
            print(f"acceptance: {part.name}, at most {limit_s:.0f} s", flush=True)
            result = _measured_or_error(part, limit_s, start)
        report["parts"].append(facts | result)
        write(report, out)
    return report


def _measured_or_error(part: Part, limit_s: float, start: Start) -> Measured:
    started_s = time.monotonic()
    try:
        result = start(part, limit_s)
    except Exception as error:  # the other parts are measured all the same
        result = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    return result | {"seconds": round(time.monotonic() - started_s, 1)}


def write(report: Measured, out: Path) -> None:
    """Writes the report as JSON and as Markdown."""
    files.write_json(out / "acceptance.json", report)
    files.write_text(out / "acceptance.md", markdown(report))


def start_in_child(part: Part, limit_s: float, out: Path, options: Sequence[str]) -> Measured:
    """Measures a part in a child process, which is killed with its workers after `limit_s` seconds.

    Raises:
        HalfstepError: the part failed; the message is the last line that it printed.
    """
    path, log = _result_file(out, part), out / "logs" / f"{part.name}.log"
    path.unlink(missing_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [*_command(out), "--measure", part.name, "--limit-seconds", f"{limit_s:.1f}", *options]
    with log.open("w", encoding="utf-8") as stream:
        child = subprocess.Popen(command, env=_environment(), stdout=stream, stderr=stream, start_new_session=True)
        try:
            status: int | None = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if path.exists():  # also of a part that was stopped after its first measurement
        result: Measured = json.loads(path.read_text(encoding="utf-8"))
        return result if status == 0 else result | {"incomplete": "its time was up before its end"}
    if status is None:
        return {"not_measured": f"did not end in {limit_s:.0f} s"}
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    raise HalfstepError(f"{lines[-1].strip() if lines else f'ended with status {status}'} (see {log})")


def _command(out: Path) -> list[str]:
    return [sys.executable, "-m", "tools.acceptance", "--out", str(out)]


def _environment() -> dict[str, str]:
    search_path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    return {**os.environ, "PYTHONPATH": search_path}


def _result_file(out: Path, part: Part) -> Path:
    return out / "parts" / f"{part.name}.json"


def measure_part(part: Part, out: Path, limit_s: float, batch_size: int, *, on_cpu: bool) -> None:
    """Measures a part in this process, and writes the result each time that there is more of it.

    Args:
        part: what is measured.
        out: folder of the report.
        limit_s: seconds after which this process may be killed.
        batch_size: images a step.
        on_cpu: with a few short rounds, on the CPU.

    Raises:
        HalfstepError: a worker failed, or the images cannot be prepared.
    """
    started_s = time.monotonic()
    if on_cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    folder = out / "work" / "measured" / part.name
    shutil.rmtree(folder, ignore_errors=True)
    configs = {
        name: _trial(part.network, entry, out / "work", batch_size, on_cpu=on_cpu)
        for name, entry in entries(xla=part.xla).items()
    }
    if not on_cpu:
        configs[files.CONTROL] = configs[BASELINE]
    protocol = ProfileParams(
        processes=FEWEST_REPEATS, max_seconds=TIMING_SHARE * limit_s, trace_steps=3, inference_batch_sizes=()
    )
    if on_cpu:
        protocol = protocol.model_copy(update={"rounds": 3, "steps_per_round": 1, "warmup_steps": 1})
    measurement, result = _measured(configs, protocol, folder), _result_file(out, part)
    files.write_json(result, described(measurement, {}))
    for name, record in measurement.records.items():
        _keep(record, out / "traces" / f"{part.name}-{name}")
    traces = {name: _read(name, record) for name, record in measurement.records.items()}
    files.write_json(result, described(measurement, traces))
    repeat_s = (time.monotonic() - started_s) / FEWEST_REPEATS
    more = min(MOST_REPEATS - FEWEST_REPEATS, int((limit_s - FEWEST_REPEATS * repeat_s) / (MARGIN * repeat_s)))
    if more > 0 and not on_cpu:
        amount = {"processes": FEWEST_REPEATS + more, "max_seconds": 2 * TIMING_SHARE * limit_s}
        files.write_json(result, described(_measured(configs, protocol.model_copy(update=amount), folder), traces))


def _measured(configs: Mapping[str, Trial], protocol: ProfileParams, folder: Path) -> Measurement:
    """Measures the arms; what the folder has of an earlier measurement with fewer repeats is taken over."""
    context = MeasurementContext()
    return measure(configs, BASELINE, protocol, context, Repeats(folder, amounts(protocol, context.min_speedup)))


def _trial(network: Network, entry: Variant, work: Path, batch_size: int, *, on_cpu: bool) -> Trial:
    directory = (work / f"{network.image_size}px").resolve()
    if not (directory / files.MANIFEST).exists():
        images = DataParams(
            source="synthetic", image_size=network.image_size, synthetic_images=network.images, test_fraction=0.1
        )
        prepare(images, directory)
    threads = 2 if on_cpu else max(2, (os.cpu_count() or 2) // 4)
    train = TrainParams(batch_size=batch_size, epochs=0, input_threads=threads, require_gpu=not on_cpu)
    digest = files.verify_manifest(directory)
    return Trial(TaskParams(), ModelParams(name=network.model), train, entry, 0, digest, directory)


def _read(name: str, record: ArmRecord) -> Trace | str:
    """The trace of an arm, or why it cannot be read."""
    if record.trace is None:
        return "not traced"
    try:
        return read_trace(_trace_file(record), record.trace.graph_dtypes)
    except (HalfstepError, OSError, StopIteration) as error:
        print(f"acceptance: trace of {name}: {error}", flush=True)
        return str(error) or "the profiler wrote no trace"


def _trace_file(record: ArmRecord) -> Path:
    assert record.trace is not None
    return next(record.trace.directory.rglob("*.xplane.pb"))


def _keep(record: ArmRecord, target: Path) -> None:
    """Copies the trace of an arm out of the folder of the measurement, with the data types of its graph."""
    if record.trace is not None:
        with suppress(StopIteration):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_trace_file(record), f"{target}.xplane.pb")
            files.write_json(Path(f"{target}.graph.json"), dict(record.trace.graph_dtypes))


def described(measurement: Measurement, traces: Mapping[str, Trace | str]) -> Measured:
    """Everything about a part: its protocol, its arms, the ratios between them and the reasons.

    Args:
        measurement: of the arms.
        traces: by arm, or why one cannot be read; without an arm until its trace is read.
    """
    profiles = {name: _profile(name, measurement, traces.get(name)) for name in measurement.records}
    environment = fingerprint()
    ratios = list(_ratios(measurement, profiles, environment))
    return {
        "protocol": measurement.protocol.model_dump(mode="json"),
        "arms": [_arm(profile, measurement.records[name], traces.get(name)) for name, profile in profiles.items()],
        "ratios": ratios,
        "reasons": {
            case.variant: [{"code": one.code, "text": one.text, "advice": one.advice} for one in case.reasons]
            for case in _cases(profiles, environment)
        },
    }


def _profile(name: str, measurement: Measurement, trace: Trace | str | None) -> Profile:
    record = measurement.records[name]
    summary = summarize(name, measurement, trace if isinstance(trace, Trace) else None)
    tables = {
        attribute: pd.DataFrame(
            map(asdict, getattr(record.times, attribute)), columns=[column.name for column in fields(row)]
        )
        for attribute, (_, row) in TABLES.items()
    }
    return Profile(summary, **tables)


def _arm(profile: Profile, record: ArmRecord, trace: Trace | str | None) -> Measured:
    summary: ProfileSummary = profile.summary
    arm: Measured = {
        "name": summary.variant,
        "device": summary.configuration.device,
        "batch_size": summary.in_force.batch_size,
        "in_force": summary.in_force.model_dump(),
        "metrics": summary.metrics,
        "warnings": [*summary.warnings, *([trace] if isinstance(trace, str) else [])],
    }
    if isinstance(trace, Trace) and record.trace is not None:
        arm["top_matrix_kernels"] = list(_top_matrix(trace, record.trace.marked_steps))
        arm["trace_bytes"] = _trace_file(record).stat().st_size
    return arm


def _top_matrix(trace: Trace, steps: int) -> Iterator[Measured]:
    """The kernels of matrix work with the most time, all operations of a name together; operations without a GPU."""
    rows: dict[str, list[Operation]] = {}
    for row in trace.kernels or trace.compute:
        if row.category == "matrix":
            rows.setdefault(row.kernel or row.name, []).append(row)
    devices = trace.device_count or 1
    times_ms = {
        name: sum(row.self_time_us for row in operations) / 1e3 / steps / devices for name, operations in rows.items()
    }
    for name in sorted(times_ms, key=lambda name: -times_ms[name])[:TOP]:
        first = rows[name][0]
        facts = {"name": name, "ms_per_step": times_ms[name], "dtype": first.dtype}
        yield facts | ({"tensor_core": first.tensor_core} if first.kernel else {})


def _ratios(
    measurement: Measurement, profiles: Mapping[str, Profile], environment: dict[str, Any]
) -> Iterator[Measured]:
    """Speed-ups of training over the baseline and over true float32, each with the limit of that arm's trace."""
    for over in (BASELINE, TRUE_FLOAT32):
        for name, speedup in _speedups(measurement, over).items():
            limit = None if name == files.CONTROL else train_limit(profiles[over], profiles[name], environment)
            yield {
                "arm": name,
                "over": over,
                "ratio": speedup.ratio,
                "low": speedup.low,
                "high": speedup.high,
                "rounds": speedup.rounds,
                "processes": speedup.processes,
                "limit": limit,
                "outside_the_limit": limit is not None and speedup.low > limit,
            }


def _speedups(measurement: Measurement, over: str) -> dict[str, Speedup]:
    """Speed-ups of training over an arm. The control is a second copy of the baseline, and compared with it alone."""
    protocol = measurement.protocol
    rounds = {name: tables(record).rounds for name, record in measurement.records.items()}
    left_out = {over} if over == BASELINE else {over, files.CONTROL}
    return {
        name: train_speedup(
            rounds[over], rounds[name], protocol.confidence_of(name, TRAIN), interleaved=protocol.interleaved
        )
        for name in rounds
        if name not in left_out
    }


def _cases(profiles: Mapping[str, Profile], environment: dict[str, Any]) -> tuple[Case, ...]:
    """Each candidate against the baseline, by the rules of `compare`; nothing was trained."""
    metrics = TrainingMetrics(status="not_trained", batch_size=1, data_sha256="", environment="")
    results = {name: VariantResult(name, (Training(0, metrics),), profile) for name, profile in profiles.items()}
    baseline, control = results.pop(BASELINE), results.pop(files.CONTROL, None)
    study = Study(
        baseline,
        tuple(results.values()),
        control.profile if control else None,
        task=images_task(1),
        data=None,
        environment=environment,
        inference_batch_sizes=(),
    )
    return judged(study, CompareParams()).cases


def describe_machine(out: Path, *, on_cpu: bool) -> Measured:
    """The machine and its software. TensorFlow is asked in a child, which may fail or hang."""
    machine: Measured = fingerprint()
    path = out / "parts" / "software.json"
    path.unlink(missing_ok=True)
    options = ["--software", *(["--cpu"] if on_cpu else [])]
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [*_command(out), *options], env=_environment(), timeout=DESCRIPTION_S, capture_output=True, check=False
        )
        lines = done.stderr.decode(errors="replace").splitlines()
        machine["software"] = {"error": lines[-1] if lines else f"ended with status {done.returncode}"}
        if path.exists():
            machine["software"] = json.loads(path.read_text(encoding="utf-8"))
    machine.setdefault("software", {"error": f"TensorFlow did not answer in {DESCRIPTION_S:.0f} s"})
    return machine


def software() -> Measured:
    """Versions of TensorFlow and of the CUDA libraries that it was built with and that it loads, and its GPUs."""
    from halfstep.tensorflow_import import keras, tf

    gpus = tf.config.list_physical_devices("GPU")
    build = tf.sysconfig.get_build_info()
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "gpus": [{k: str(v) for k, v in tf.config.experimental.get_device_details(gpu).items()} for gpu in gpus],
        "built_with": {name: str(build[name]) for name in ("cuda_version", "cudnn_version") if name in build},
        "loaded": {name: version for name, version in _loaded_versions() if version is not None},
    }


def _loaded_versions() -> Iterator[tuple[str, int | None]]:
    """Versions as the libraries report them, such as 90300; None for one that does not load."""
    with suppress(OSError, AttributeError):
        yield "cudnn", int(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())
    with suppress(OSError, AttributeError):
        version = ctypes.c_int()
        failed = ctypes.CDLL("libcudart.so.12").cudaRuntimeGetVersion(ctypes.byref(version))
        yield "cuda_runtime", None if failed else version.value


def _batch_size(network: Network, *, on_cpu: bool) -> int:
    """The network's batch size; fewer large images where the memory of the first GPU is smaller."""
    gpus = fingerprint()["gpus"]
    size, gib = network.batch_size, int(gpus[0].get("memory_gib", 0)) if gpus else 0
    while not on_cpu and network.image_size > 64 and gib < FULL_BATCH_GIB * size / network.batch_size and size > 8:
        size //= 2
    return size


def main() -> int:
    """Measures all parts, or one of them in a child process."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.acceptance", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("acceptance"), help="folder of the report")
    parser.add_argument("--minutes", type=float, default=15.0, help="for everything together")
    parser.add_argument("--cpu", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--parts", nargs="+", help="only these of " + ", ".join(part.name for part in GPU_PARTS))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--software", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--limit-seconds", type=float, default=240.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    parts: tuple[Part, ...] = CPU_PARTS if arguments.cpu else GPU_PARTS
    if arguments.software:
        files.write_json(out / "parts" / "software.json", software())
        return 0
    if unknown := sorted({*(arguments.parts or ())} - {part.name for part in parts}):
        parser.error(f"--parts {' '.join(unknown)}: allowed are {', '.join(part.name for part in parts)}")
    if arguments.measure:
        part = next(part for part in parts if part.name == arguments.measure)
        size = _batch_size(part.network, on_cpu=arguments.cpu)
        try:
            measure_part(part, out, arguments.limit_seconds, size, on_cpu=arguments.cpu)
        except HalfstepError as error:
            print(" ".join(str(error).split()))
            return error.exit_status
        return 0
    out.mkdir(parents=True, exist_ok=True)
    parts = tuple(part for part in parts if part.name in (arguments.parts or [part.name]))
    started_s, options = time.monotonic(), ["--cpu"] if arguments.cpu else []
    machine = describe_machine(out, on_cpu=arguments.cpu)
    left = arguments.minutes - (time.monotonic() - started_s) / 60
    report = run(parts, out, left, machine, lambda part, limit_s: start_in_child(part, limit_s, out, options))
    shutil.rmtree(out / "work", ignore_errors=True)
    print(markdown(report))
    return 0 if all("arms" in part for part in report["parts"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
