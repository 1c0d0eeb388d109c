"""The table of the formats in which the trained weights can be served: one list of rows, for every report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from halfstep.compare.report.charts import HEIGHT, WIDTH, Axis
from halfstep.compare.scale import Scale
from halfstep.compare.text import large_ratio_text
from halfstep.formats import FORMATS, KERAS
from halfstep.results.comparison import Comparison, Latency, ServedRow, Serving
from halfstep.text import batch_size_of, joined, ms_text, number_text

_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 8, 8, 28  # of the picture, in units of its SVG
_LINE, _CHARACTER = 14, 6  # of a label
_BEST = 2  # rows in the terminal, beside Keras


def caption(serving: Serving) -> str:
    """What the ratios are, where the formats predict if that is not the same for all, and what disturbed the timing."""
    texts = ["×: time of Keras in the baseline's precision / time of the format, with its 95 % interval"]
    if serving.on_cpu:
        on_cpu = joined([FORMATS[name].label for name in serving.on_cpu])
        texts.append(f"Keras predicts on the GPU, {on_cpu} on the CPU of the same machine")
    return ". ".join([*texts, *(serving.warnings or ())])


def heads(comparison: Comparison) -> tuple[str, ...]:
    """The heads of the columns."""
    score = comparison.score.name if comparison.score else "score"
    measures = comparison.serving.measures if comparison.serving else ()
    sizes = (f"batch {batch_size_of(measure)}" for measure in measures)
    return ("trained in", "served as", f"{score}, change", *sizes, "KiB", "verdict")


def cells(comparison: Comparison, *, best_only: bool = False) -> list[tuple[str, ...]]:
    """The rows below `heads`: Keras first, then each variant in each format, those of the judged weights first.

    Args:
        comparison: the document.
        best_only: leave out all but Keras, the format to serve with, and the fastest other one.
    """
    serving = comparison.serving
    if serving is None:
        return []
    rows = sorted(serving.rows, key=lambda row: row.variant != serving.weights)
    if best_only:
        good = [row for row in rows if row.is_good]
        rows = sorted(good, key=lambda row: (row.format != serving.best, _time_ms(row, serving)))[:_BEST]
        rows = rows or [row for row in serving.rows if row.variant == serving.weights][:_BEST]
    times = [ms_text(serving.keras_ms[measure]) if measure in serving.keras_ms else "" for measure in serving.measures]
    keras = (comparison.baseline, FORMATS[KERAS].label, "", *times, "", "")
    return [keras, *(_cells(row, serving) for row in rows)]


def _time_ms(row: ServedRow, serving: Serving) -> float:
    return row.timed[serving.measures[0]].time_ms


def _cells(row: ServedRow, serving: Serving) -> tuple[str, ...]:
    label = row.label
    if row.refusal is not None:
        return (row.variant, label, *[""] * (len(serving.measures) + 2), "not possible")
    quality = "" if row.quality is None else Scale.of(row.quality).change(row.quality)
    times = (_latency(row.timed.get(measure)) for measure in serving.measures)
    kib = "" if row.kib is None else number_text(row.kib)
    return (row.variant, label, quality, *times, kib, row.verdict or "not judged")


def _latency(found: Latency | None) -> str:
    if found is None:
        return ""
    return f"{ms_text(found.time_ms)}, {large_ratio_text(found.ratio, found.low, found.high)}"


def refusals(serving: Serving) -> Iterator[str]:
    """What the formats refuse, once for all variants and formats of which the same is said."""
    models: dict[tuple[str, str], list[str]] = {}  # by reason and format
    for row in serving.rows:
        label = FORMATS[row.format].label
        if row.refusal is not None:
            models.setdefault((row.refusal.removeprefix(f"{label}: ").rstrip("."), label), []).append(row.variant)
        if row.own_refusal is not None:
            text = f"{row.own_refusal.removeprefix(f'{label}: ').rstrip('.')}; in float32 the same weights work"
            models.setdefault((text, label), []).append(f"the model of {row.variant} in its own precision")
    labels: dict[tuple[str, str], list[str]] = {}  # by reason and models
    for (text, label), found in models.items():
        labels.setdefault((text, ", ".join(dict.fromkeys(found))), []).append(label)
    for (text, found_in), of_them in labels.items():
        yield f"{found_in}: {joined(of_them)}: {text}."


def view(comparison: Comparison) -> dict[str, Any] | None:
    """What the page shows: the table, what is refused, the picture, and the file to use."""
    serving = comparison.serving
    if serving is None:
        return None
    return {
        "sentence": serving.sentence,
        "caption": caption(serving),
        "heads": heads(comparison),
        "rows": cells(comparison),
        "refusals": list(refusals(serving)),
        "picture": _picture(comparison, serving),
        "threads": serving.threads,
        "files": [
            (f"{row.variant}, {row.label}", f"{row.file} (sha256 {row.sha256})")
            for row in serving.rows
            if (row.variant, row.name) == (serving.weights, serving.best) and row.file is not None
        ],
    }


def _picture(comparison: Comparison, serving: Serving) -> dict[str, Any] | None:
    """Latency by change of the score at the first batch size, for the weights that are judged."""
    rows = [row for row in serving.rows if row.variant == serving.weights and row.timed and row.quality is not None]
    if not rows or not serving.measures:
        return None
    measure = serving.measures[0]
    times = [serving.keras_ms[measure], *(row.timed[measure].time_ms for row in rows)]
    qualities = [row.quality for row in rows if row.quality is not None]
    scale = Scale.of(qualities[0])
    across = Axis.around([-scale.margin, 0.0, *(end for item in qualities for end in (item.low, item.high))])
    up = Axis.around(times, logarithmic=True, padding=0.15)

    def x(value: float) -> float:
        return round(_LEFT + across.at(value) * (WIDTH - _LEFT - _RIGHT) / 100, 1)

    def y(time_ms: float) -> float:
        return round(HEIGHT - _BOTTOM - up.at(time_ms) * (HEIGHT - _TOP - _BOTTOM) / 100, 1)

    points = [
        {
            "label": row.label,
            "x": x(item.delta),
            "low": x(item.low),
            "high": x(item.high),
            "y": y(row.timed[measure].time_ms),
            "good": row.is_good,
        }
        for row, item in zip(rows, qualities, strict=True)
    ]
    in_points = f" in{scale.points}" if scale.points else ""
    keras = {"label": FORMATS[KERAS].label, **dict.fromkeys(("x", "low", "high"), x(0.0)), "y": y(times[0])}
    return {
        "points": _labelled([{**keras, "good": False}, *points]),
        "margin": x(-scale.margin),
        "x_ticks": [(x(tick), scale.signed(tick)) for tick in across.ticks()],
        "y_ticks": [(y(tick), ms_text(tick)) for tick in up.ticks()],
        **{"left": _LEFT, "right": WIDTH - _RIGHT, "top": _TOP, "bottom": HEIGHT - _BOTTOM},
        "label": f"Change of {scale.name}{in_points} (across) and latency at batch size {batch_size_of(measure)} (up)",
    }


def _labelled(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Points whose labels would lie on each other have one label, at the uppermost of them."""
    found: list[dict[str, Any]] = []
    above: dict[str, Any] | None = None  # the last point with a label
    for point in sorted(points, key=lambda point: point["y"]):
        width = _CHARACTER * len(point["label"])
        if above and point["y"] - above["y"] < _LINE and abs(point["x"] - above["x"]) < width:
            above["label"] += f", {point['label']}"
            found.append({**point, "label": ""})
        else:
            above = {**point}
            found.append(above)
    return found
