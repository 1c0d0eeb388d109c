"""Candidates whose batch is not the baseline's, and all variants at their best batches."""

from __future__ import annotations

from stages import files
from stages.compare.judge import document_of
from stages.compare.report.html import render_report
from stages.compare.report.markdown import render_markdown
from stages.compare.report.tables import at_equal_batch, batch_rows
from stages.params import Variant
from stages.results.artifact import write_table
from stages.results.comparison import Comparison
from stages.results.profile import BatchRound, BestBatch, Round, read_profile
from tests.small_study import ENDING, PROTOCOL, SmallStudy, settings_in_force

BEST = {"float32": 64, "_control": 64, "mixed_bfloat16": 128}
STEP_MS = {"float32": 16.0, "_control": 16.0, "mixed_bfloat16": 20.0}  # at these batches


def give_batch(project: SmallStudy, batch_size: int = 64) -> None:
    """Makes of mixed_bfloat16 a variant that was trained and measured with another batch, with the same times."""
    entry = Variant(policy="mixed_bfloat16", batch_size=batch_size, parent="float32")
    settings = settings_in_force("mixed_bfloat16", batch_size=batch_size, learning_rate=0.01)
    found = read_profile("mixed_bfloat16").metrics
    metrics = found | {"train_images_per_s": 2 * found["train_images_per_s"]}
    project.edit_profile("mixed_bfloat16", entry=entry, in_force=settings, metrics=metrics)
    for seed in (1, 2, 3):
        project.edit_training("mixed_bfloat16", seed, batch_size=batch_size)


def measure_best(project: SmallStudy, control_factor: float = 1.0) -> None:
    endings = {"mixed_bfloat16": {"train": ENDING}}
    for name, size in BEST.items():
        folder, step_ms = files.profile_dir(name), STEP_MS[name] * (control_factor if name == "_control" else 1.0)
        noise = {0: 0.998, 1: 1.002, 2: 0.999, 3: 1.001}
        rows = [
            Round(process, number, 0, 3, 3 * step_ms * noise[process] * (1 + 0.001 * (number % 2)))
            for process in range(4)
            for number in range(4)
        ]
        write_table(folder / "best_batch.csv", Round, rows)
        if files.is_variant(name):
            curve = [
                BatchRound(0, at, turn, 10, 10 * (4.0 + 0.01 * at + turn)) for at in (32, size) for turn in range(2)
            ]
            write_table(folder / "batches.csv", BatchRound, curve)
        best = BestBatch(batch_size=size, peak_mib=300.0, protocol=PROTOCOL.model_copy(update={"endings": endings}))
        project.edit_profile(name, best_batch=best)


def compared(project: SmallStudy) -> Comparison:
    return document_of(project.compare())


def test_speed_up_is_of_examples_per_second(project: SmallStudy) -> None:
    before = compared(project).candidates["mixed_bfloat16"]
    give_batch(project)
    found = compared(project).candidates["mixed_bfloat16"]
    assert found.other_batch is not None
    assert (found.other_batch.batch_size.baseline, found.other_batch.batch_size.candidate) == (32, 64)
    assert abs(found.speedups["train"].ratio / before.speedups["train"].ratio - 2) < 1e-6
    assert found.speedups["inference_b1"] == before.speedups["inference_b1"]
    assert (found.account, found.limit) == (None, None)
    assert before.account is not None
    assert found.over_parent is not None
    assert found.over_parent.ratio == found.speedups["train"].ratio
    assert found.sentences[-1].startswith("Over float32, from which it was made, its speed-up of training is 3.20×")
    assert "training step" not in found.sentence


def test_other_batch_stands_in_a_table_of_its_own(project: SmallStudy) -> None:
    give_batch(project)
    result = compared(project)
    assert list(at_equal_batch(result)) == ["mixed_float16", "float16"]
    (row,) = batch_rows(result)
    assert (row.variant, row.batch_size) == ("mixed_bfloat16", "64")
    assert "over float32 at 32" in row.speedup
    note = "mixed_bfloat16 trains on batches of 64 with a largest learning rate of 0.01, in proportion to its batch"
    assert any(text.startswith(note) for text in result.notes or ())
    page, markdown = render_report(result, project.load()), render_markdown(result)
    assert "At other batches" in page
    assert "| mixed\\_bfloat16 | training step |" not in markdown
    assert "| mixed\\_float16 | training step |" in markdown
    assert "| mixed\\_bfloat16 | 64 |" in markdown


def test_all_at_equal_batch_have_no_such_table(project: SmallStudy) -> None:
    result = compared(project)
    assert batch_rows(result) == []
    assert "At other batches" not in render_report(result, project.load())


def test_best_batches_are_compared_with_each_other(project: SmallStudy) -> None:
    measure_best(project)
    found = compared(project).best_batches
    assert found is not None
    assert found.void is None
    before, after = found.variants["float32"], found.variants["mixed_bfloat16"]
    assert (before.batch_size, after.batch_size, before.speedup) == (64, 128, None)
    assert after.speedup is not None
    assert abs(after.speedup.ratio - (128 / 20) / (64 / 16)) < 1e-6
    assert after.speedup.low > 1.5
    assert after.verdict == "faster"
    assert (before.trained_as, after.trained_as) == (None, None)
    assert [(point.variant, point.batch_size) for point in found.curve] == [
        ("float32", 32),
        ("float32", 64),
        ("mixed_bfloat16", 32),
        ("mixed_bfloat16", 128),
    ]


def test_best_batch_has_the_quality_of_a_variant_that_was_trained_with_it(project: SmallStudy) -> None:
    give_batch(project, 128)
    measure_best(project)
    result = compared(project)
    assert result.best_batches is not None
    assert result.best_batches.variants["mixed_bfloat16"].trained_as == "mixed_bfloat16"
    rows = batch_rows(result)
    assert [row.batch_size for row in rows] == ["128", "64 (best)", "128 (best)"]
    assert rows[2].quality == rows[0].quality != ""


def test_copies_that_differ_at_the_best_batch_decide_nothing(project: SmallStudy) -> None:
    measure_best(project, control_factor=1.2)
    result = compared(project)
    assert result.best_batches is not None
    assert result.best_batches.void
    assert result.best_batches.variants["mixed_bfloat16"].verdict == "inconclusive"
    assert any("at its best batch" in note for note in result.notes or ())


def test_better_batch_is_a_reason_with_a_change(project: SmallStudy) -> None:
    measure_best(project)
    reasons = {reason.code: reason for reason in compared(project).candidates["mixed_bfloat16"].reasons}
    change = reasons["small_batch"].change
    assert change is not None
    assert (change.key, change.before, change.to) == ("variants.mixed_bfloat16.batch_size", None, 128)
    assert change.at_most is not None
    assert change.at_most > 1.05
