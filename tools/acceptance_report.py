"""The Markdown of `python -m tools.acceptance`, from its JSON alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Measured = Mapping[str, Any]

SOURCE = (
    "NVIDIA/DeepLearningExamples, TensorFlow/Classification/ConvNets/resnet50v1.5/README.md, training performance on "
    "one GPU, container 20.06-tf1"
)
# ResNet-50 in mixed_float16 with XLA: GPU, ratio, over what, images a second before and after, batch sizes, source.
PUBLISHED = (
    ("A100 40 GB", 2.60, "TF32", (909, 2375), "256", SOURCE),
    ("V100 16 GB", 3.08, "float32", (412, 1270), "128, and 256 in 16 bit", SOURCE),
)
PUBLISHED_PART = ("resnet50", True, "mixed_float16")
ARM_COLUMNS = (
    ("step, ms", "step_time_ms/mean", 3),
    ("images/s", "train_images_per_s", 0),
    ("traced step, ms", "profiler/step_time_ms", 3),
    ("overhead of the profiler, %", "profiler/overhead_percent", 1),
    ("matrix work on tensor cores, %", "profiler/matrix_tensor_core_percent", 1),
    ("tensor cores, % of compute", "profiler/tensor_core_percent", 1),
    ("unknown, %", "profiler/tensor_core_unknown_percent", 1),
    ("16 bit, %", "profiler/compute_16bit_percent", 1),
    ("TF32, %", "profiler/compute_tf32_percent", 1),
    ("type unknown, %", "profiler/compute_unknown_percent", 1),
    ("peak memory, MiB", "memory/peak_mib", 0),
)


def markdown(report: Measured) -> str:
    """The report as one Markdown document."""
    lines = ["# Acceptance on this machine", "", *_machine(report["machine"]), ""]
    for part in report["parts"]:
        lines += [*_part(part), ""]
    lines += [*_published(report["parts"]), ""]
    missing = [part for part in report["parts"] if "arms" not in part]
    if missing:
        lines += ["## Not measured", ""]
        lines += [f"- {part['name']}: {part.get('not_measured') or part.get('error')}" for part in missing]
    return "\n".join(lines).rstrip() + "\n"


def _machine(machine: Measured) -> Iterator[str]:
    yield f"- Device: {machine['device']}"
    for number, gpu in enumerate(machine["gpus"]):
        yield f"- GPU {number}: {_pairs(gpu)}"
    yield f"- CPU: {_pairs(machine['cpu'])}"
    yield f"- Versions: {_pairs(machine['versions'])}"
    software = machine["software"]
    yield f"- TensorFlow: {_pairs({name: value for name, value in software.items() if not isinstance(value, list)})}"
    for gpu in software.get("gpus", ()):
        yield f"- TensorFlow sees: {_pairs(gpu)}"
    if machine["settings"]:
        yield f"- Environment: {_pairs(machine['settings'])}"


def _part(part: Measured) -> Iterator[str]:
    network = part["network"]
    setting = f"{network['model']}, {network['image_size']} px, XLA {'on' if part['xla'] else 'off'}"
    yield f"## {part['name']}: {setting}"
    yield ""
    if "arms" not in part:
        yield f"{part.get('not_measured') or part.get('error')}"
        return
    protocol = part["protocol"]
    first = part["arms"][0]
    yield (
        f"{part.get('seconds', 0):.0f} s; batch size {first['batch_size']} on the {first['device']}; "
        f"{protocol['rounds']} rounds of {protocol['steps_per_round']} steps in {protocol['processes']} repeats, "
        f"{protocol['timing_seconds']:.1f} s of timing."
    )
    if first["device"] == "CPU":
        yield "Measured on the CPU: this checks the program, and says nothing about a GPU."
    if "incomplete" in part:
        yield f"Incomplete: {part['incomplete']}."
    yield ""
    yield from _table(["arm", *(label for label, *_ in ARM_COLUMNS)], (_arm_row(arm) for arm in part["arms"]))
    yield ""
    yield from _table(
        ["arm", "over", "ratio", "95 % interval", "rounds", "repeats", "limit of the trace", "outside the limit"],
        map(_ratio_row, part["ratios"]),
    )
    yield ""
    yield from _kernels(part["arms"])
    yield from (f"- {name}: {reason['code']}: {reason['text']}" for name, reason in _reasons(part))
    yield from (f"- GPU: {_pairs(state)}" for state in protocol.get("gpus", ()))
    warnings = dict.fromkeys(warning for arm in part["arms"] for warning in arm["warnings"])
    yield from (f"- Warning: {warning}" for warning in (*protocol.get("warnings", ()), *warnings))


def _reasons(part: Measured) -> Iterator[tuple[str, Measured]]:
    return ((name, reason) for name, reasons in part["reasons"].items() for reason in reasons)


def _arm_row(arm: Measured) -> list[str]:
    return [arm["name"], *(_number(arm["metrics"].get(metric), digits) for _, metric, digits in ARM_COLUMNS)]


def _ratio_row(ratio: Measured) -> list[str]:
    flag = "outside the trace's limit" if ratio["outside_the_limit"] else ""
    interval = f"{ratio['low']:.3f} to {ratio['high']:.3f}"
    counts = [str(ratio["rounds"]), str(ratio["processes"])]
    return [ratio["arm"], ratio["over"], f"{ratio['ratio']:.3f}", interval, *counts, _number(ratio["limit"], 2), flag]


def _kernels(arms: Sequence[Measured]) -> Iterator[str]:
    rows = [_kernel_row(arm["name"], kernel) for arm in arms for kernel in arm.get("top_matrix_kernels", ())]
    if rows:
        yield from _table(["arm", "matrix kernel", "ms a step", "type", "on tensor cores"], rows)
        yield ""


def _kernel_row(arm: str, kernel: Measured) -> list[str]:
    used = {True: "yes", False: "no", None: "unknown", "absent": ""}[kernel.get("tensor_core", "absent")]
    return [arm, f"`{kernel['name'][:160]}`", f"{kernel['ms_per_step']:.3f}", kernel["dtype"] or "unknown", used]


def _published(parts: Sequence[Measured]) -> Iterator[str]:
    """Published speed-ups of ResNet-50, and whether the limit of the trace measured here allows them."""
    model, xla, arm = PUBLISHED_PART
    ratios = [
        ratio
        for part in parts
        if part["network"]["model"] == model and part["xla"] == xla
        for ratio in part.get("ratios", ())
        if ratio["arm"] == arm
    ]
    yield "## Published, for comparison: ResNet-50, 224 px, mixed_float16, XLA on"
    yield ""
    rows = []
    for gpu, published, over, (before, after), batch_size, source in PUBLISHED:
        own = next(
            (item for item in ratios if item["over"] == ("float32" if over == "TF32" else "float32_no_tf32")), None
        )
        measured = "not measured" if own is None else f"{own['ratio']:.2f} ({own['low']:.2f} to {own['high']:.2f})"
        limit = None if own is None else own["limit"]
        flag = "outside the trace's limit" if limit is not None and published > limit else ""
        rates = f"{before} to {after}"
        rows.append([gpu, over, f"{published:.2f}", rates, batch_size, measured, _number(limit, 2), flag, source])
    yield from _table(
        ["GPU", "over", "published", "images/s", "batch size", "here", "limit of the trace here", "", "source"], rows
    )


def _table(columns: Sequence[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield _row(columns)
    yield _row(["---"] * len(columns))
    yield from map(_row, rows)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _pairs(values: Measured) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
