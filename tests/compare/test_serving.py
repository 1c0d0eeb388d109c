"""Formats are judged by their own times, beside Keras, and by the same margin."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from halfstep.compare.document import document_of
from halfstep.compare.metrics import dvc_metrics
from halfstep.compare.report.markdown import render_markdown
from halfstep.params.schema import Variant
from halfstep.results.artifact import write_array
from halfstep.results.comparison import Serving
from halfstep.results.profile import InferenceCall, ProfileSummary, Protocol
from halfstep.results.serving import SERVING, Export, Served, outputs_file, write_times
from halfstep.system import files
from tests.small_study import (
    CONFIGURATION,
    SEEDS,
    SmallStudy,
    html_of,
    predictions,
    settings_in_force,
    terminal_of,
)
from tests.small_study import comparison as comparison
from tests.small_study import complete_data as complete_data
from tests.small_study import project as project

SPEEDS = {"keras": 1.0, "_control": 1.0, "litert": 20.0, "litert_int8": 40.0, "saved_model": 1.0}
WRONG = {"litert": 24, "litert_int8": 200, "saved_model": 24}  # of 1,200 test images; Keras has 24
TRAINED = ("float32", "mixed_bfloat16")
REFUSAL = "ONNX Runtime: types bfloat16 and float16 meet in Mul"


def calls(speed: float, noise: float = 0.01) -> list[InferenceCall]:
    random = np.random.default_rng(int(speed * 10))
    return [
        InferenceCall(process, number, 1, call, 1.0 / speed * float(np.exp(noise * random.normal())))
        for process in range(4)
        for number in range(4)
        for call in range(8)
    ]


def write_served(
    speeds: dict[str, float] | None = None,
    wrong: dict[str, int] | None = None,
    on_gpu: tuple[str, ...] = (),
    warnings: tuple[str, ...] = (),
    noise: float = 0.01,
) -> None:
    speeds, wrong = SPEEDS | (speeds or {}), WRONG | (wrong or {})
    protocol = Protocol(
        processes=4, rounds=0, steps_per_round=1, timing_seconds=6.0, target_precision=0.02, warnings=warnings
    )
    exports = []
    for name, speed in speeds.items():
        summary = ProfileSummary(
            variant=name,
            entry=Variant(policy="float32"),
            configuration=CONFIGURATION.model_copy(update={"device": "GPU"} if name in on_gpu else {}),
            in_force=settings_in_force("float32"),
            protocol=protocol,
            metrics={"inference/b1/p50_ms": 1 / speed},
        )
        write_times(name, summary, calls(speed, noise))
    for variant in TRAINED:
        for seed in SEEDS:
            for name, count in wrong.items():
                write_array(files.SERVE / outputs_file(variant, seed, name), predictions(count, seed))
                exports.append(
                    Export(variant=variant, seed=seed, format=name, file=f"models/{name}", kib=48.0, sha256="e" * 64)
                )
            exports.append(Export(variant=variant, seed=seed, format="onnx", refusal=REFUSAL))
    timed = tuple(name for name in speeds if not name.startswith("_"))
    served = Served(
        formats=(*wrong, "onnx"), batch_sizes=(1,), weights="float32", threads=2, timed=timed, exports=tuple(exports)
    )
    served.write(SERVING)
    files.write_manifest(files.SERVE)


def served(project: SmallStudy) -> Serving:
    serving = document_of(project.compare()).serving
    assert serving is not None
    return serving


def verdicts(serving: Serving) -> dict[tuple[str, str], str | None]:
    return {(row.variant, row.format): row.verdict for row in serving.rows if row.verdict is not None}


def test_fast_format_with_the_same_score_is_adopted_and_the_others_are_rejected(project: SmallStudy) -> None:
    """Of 1,200 images, int8 gets 176 more wrong; SavedModel is as fast as Keras. The adopted weights are judged."""
    write_served()
    judging = project.compare()
    serving = document_of(judging).serving
    assert serving is not None
    assert serving.weights == "mixed_bfloat16"
    assert verdicts(serving) == {
        ("mixed_bfloat16", "litert"): "adopt",
        ("mixed_bfloat16", "litert_int8"): "reject",
        ("mixed_bfloat16", "saved_model"): "reject",
    }
    (fast,) = (row for row in serving.rows if (row.variant, row.format) == ("mixed_bfloat16", "litert"))
    assert fast.timed["inference_b1"].ratio == pytest.approx(20, rel=0.01)
    assert fast.quality is not None
    assert fast.quality.delta == 0
    assert serving.sentence.startswith("For inference, serve the weights of mixed_bfloat16 with LiteRT: 20.0× (")
    assert "its accuracy is the same within 1 percentage point" in serving.sentence
    metrics = dvc_metrics(judging.study, document_of(judging))["serve mixed_bfloat16 litert"]
    assert metrics == {
        "speedup_inference_b1": fast.timed["inference_b1"].value,
        "accuracy_delta": 0.0,
        "verdict": "adopt",
    }
    assert serving.sentence.endswith("; the precision of the training does not matter for it.")


def test_slow_format_is_rejected(project: SmallStudy) -> None:
    write_served({"litert": 0.2})
    serving = served(project)
    assert set(verdicts(serving).values()) == {"reject"}
    assert "keep Keras: LiteRT int8 weights loses more accuracy than the margin" in serving.sentence


def test_formats_are_not_judged_where_two_copies_of_keras_differ(project: SmallStudy) -> None:
    write_served({"_control": 1.3})
    serving = served(project)
    assert serving.control["inference_b1"].differs
    assert set(verdicts(serving).values()) == {"inconclusive"}
    assert "keep Keras" in serving.sentence


def test_verdicts_on_formats_do_not_change_those_on_precisions(project: SmallStudy) -> None:
    before = document_of(project.compare())
    write_served()
    after = document_of(project.compare())
    for name, item in before.candidates.items():
        assert item.tests == after.candidates[name].tests
        assert item.verdicts == after.candidates[name].verdicts


def test_formats_that_predict_on_the_cpu_of_a_machine_with_a_gpu_are_named(project: SmallStudy) -> None:
    write_served(on_gpu=("keras", "_control", "saved_model"))
    judging = project.compare()
    document = document_of(judging)
    assert document.serving is not None
    assert document.serving.on_cpu == ("litert", "litert_int8")
    assert "with LiteRT on the CPU: 20.0× (" in document.serving.sentence
    assert "as fast as Keras on the GPU at batch size 1" in document.serving.sentence
    console = Console(width=200, record=True)
    console.print(terminal_of(judging))
    for text in (console.export_text(), render_markdown(document), html_of(judging)):
        said = " ".join(text.split())
        assert "Keras predicts on the GPU, LiteRT and LiteRT int8 weights on the CPU of the same machine" in said


def test_speed_only_says_that_nothing_is_known_of_the_score(project: SmallStudy) -> None:
    project.make_speed_only()
    write_served()
    serving = document_of(project.compare_speed_only()).serving
    assert serving is not None
    assert verdicts(serving)["float32", "litert"] == "faster"
    assert all(row.quality is None for row in serving.rows)
    assert serving.sentence.endswith("Nothing is known of its accuracy.")


def test_reports_show_every_format(project: SmallStudy) -> None:
    write_served()
    judging = project.compare()
    document = document_of(judging)
    page, markdown = html_of(judging), render_markdown(document)
    for text in (page, markdown):
        assert "LiteRT int8 weights" in text
        assert "types bfloat16 and float16 meet in Mul" in text
    assert "not judged" in markdown
    assert "not judged" not in page
    assert f"<code>data/serve/models/litert</code> (sha256 {'e' * 64})" in page


def test_damaged_file_is_named(project: SmallStudy) -> None:
    write_served()
    path = files.SERVE / outputs_file("float32", SEEDS[0], "litert")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Exception, match=r"outputs/float32-1-litert\.npy is damaged .* `dvc repro -f -s serve`"):
        project.compare()
