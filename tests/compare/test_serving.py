"""Formats are judged by their own times, beside Keras, and by the same margin."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from halfstep.compare.document import document_of
from halfstep.compare.metrics import dvc_metrics
from halfstep.compare.report.markdown import render_markdown, render_serving
from halfstep.params.schema import Variant
from halfstep.results.artifact import write_array
from halfstep.results.comparison import Serving
from halfstep.results.profile import InferenceCall, ProfileSummary, Protocol
from halfstep.results.serving import (
    SERVING,
    Alone,
    Export,
    Served,
    ServedArm,
    TimedBatch,
    outputs_file,
    write_times,
)
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
    for seed in SEEDS:
        for name, count in wrong.items():
            write_array(files.SERVE / outputs_file(seed, name), predictions(count, seed))
            exports.append(
                Export(
                    variant="float32",
                    seed=seed,
                    format=name,
                    file=f"models/{name}/model",
                    kib=48.0,
                    sha256="e" * 64,
                    note="recurrent layers are unrolled" if name == "litert" else None,
                )
            )
        exports.append(Export(variant="float32", seed=seed, format="onnx", refusal=REFUSAL))
    batches = tuple(
        TimedBatch(batch_size=size, calls=99, first_call_ms=0.06, p10_ms=0.009, p50_ms=0.01, p99_ms=0.02)
        for size in (1, 8)
    )
    alone = Alone(precision="float32", load_ms=7.0, memory_mib=42.0, batches=batches)
    arms = tuple(
        ServedArm(format=name.partition(".")[0], threads=1 if "." in name else None, alone=alone)
        for name in speeds
        if name not in ("keras", "_control")
    )
    served = Served(formats=(*wrong, "onnx"), batch_sizes=(1,), weights="float32", arms=arms, exports=tuple(exports))
    served.write(SERVING)
    files.write_manifest(files.SERVE)


def served(project: SmallStudy) -> Serving:
    serving = document_of(project.compare()).serving
    assert serving is not None
    return serving


def verdicts(serving: Serving) -> dict[str, str | None]:
    return {row.arm: row.verdict for row in serving.rows if row.verdict is not None}


def test_fast_format_with_the_same_score_is_adopted_and_the_others_are_rejected(project: SmallStudy) -> None:
    """Of 1,200 images, int8 gets 176 more wrong; SavedModel is as fast as Keras. The baseline's weights are judged."""
    write_served()
    judging = project.compare()
    serving = document_of(judging).serving
    assert serving is not None
    assert serving.weights == "float32"
    assert verdicts(serving) == {"litert": "adopt", "litert_int8": "reject", "saved_model": "reject"}
    (fast,) = (row for row in serving.rows if row.format == "litert")
    assert fast.timed["inference_b1"].ratio == pytest.approx(20, rel=0.01)
    assert fast.quality is not None
    assert fast.quality.delta == 0
    assert serving.sentence.startswith("For inference, serve the weights of float32 with LiteRT: about 20× (")
    assert serving.sentence.endswith("its accuracy is the same within 1 percentage point.")
    metrics = dvc_metrics(judging.study, document_of(judging))["serve float32 litert"]
    assert metrics == {
        "speedup_inference_b1": fast.timed["inference_b1"].value,
        "accuracy_delta": 0.0,
        "verdict": "adopt",
    }


def test_another_number_of_threads_is_a_row_and_wins_where_it_is_faster(project: SmallStudy) -> None:
    write_served({"litert.1-thread": 30.0})
    serving = served(project)
    assert verdicts(serving)["litert.1-thread"] == "adopt"
    assert serving.best == "litert.1-thread"
    assert serving.best_row is not None
    assert "with LiteRT, 1 thread: about 30× (" in serving.sentence


def test_defaults_win_where_another_number_of_threads_cannot_be_told_apart(project: SmallStudy) -> None:
    write_served({"litert.1-thread": 20.0})
    assert served(project).best == "litert"


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
    assert "with LiteRT on the CPU: about 20× (" in document.serving.sentence
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
    assert verdicts(serving)["litert"] == "faster"
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
    assert f"<code>data/serve/models/litert/model</code> (sha256 {'e' * 64})" in page


def test_everything_known_of_the_formats_is_printed(project: SmallStudy) -> None:
    write_served()
    text = render_serving(document_of(project.compare()))
    assert "| LiteRT | 0.0500 ms, 20× (" in text
    assert "| LiteRT | default | float32 |  | 48.0 | 7.00 ms | 0.0600 ms | 0.0100 ms | 0.0200 ms | 42 MiB |" in text
    assert "| examples/s | batch 1 | batch 8 |" in text
    assert "ONNX Runtime: types bfloat16" in text
    assert "\nLiteRT: recurrent layers are unrolled." in text


def test_damaged_file_is_named(project: SmallStudy) -> None:
    write_served()
    path = files.SERVE / outputs_file(SEEDS[0], "litert")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Exception, match=r"outputs/litert-1\.npy is damaged .* `dvc repro -f -s serve`"):
        project.compare()
