"""Candidates whose batch is not the baseline's."""

from __future__ import annotations

from halfstep.compare.document import document_of
from halfstep.compare.report.html import render_report
from halfstep.compare.report.markdown import render_markdown
from halfstep.compare.report.tables import at_equal_batch, batch_table
from halfstep.params.schema import Variant
from halfstep.results.comparison import Comparison
from halfstep.results.profile import BatchTried, LargestBatch, read_profile
from tests.small_study import SmallStudy, settings_in_force


def give_batch(project: SmallStudy, batch_size: int = 64) -> None:
    """Makes of mixed_bfloat16 a variant that was trained and measured with another batch, with the same times."""
    entry = Variant(policy="mixed_bfloat16", batch_size=batch_size, parent="float32")
    settings = settings_in_force("mixed_bfloat16", batch_size=batch_size, learning_rate=0.01)
    original_metrics = read_profile("mixed_bfloat16").metrics
    metrics = original_metrics | {"train_images_per_s": 2 * original_metrics["train_images_per_s"]}
    project.edit_profile("mixed_bfloat16", entry=entry, in_force=settings, metrics=metrics)
    for seed in (1, 2, 3):
        project.edit_training("mixed_bfloat16", seed, batch_size=batch_size)


def compared(project: SmallStudy) -> Comparison:
    return document_of(project.compare())


def test_speed_up_is_of_examples_per_second(project: SmallStudy) -> None:
    before = compared(project).candidates["mixed_bfloat16"]
    give_batch(project)
    after = compared(project).candidates["mixed_bfloat16"]
    assert after.other_batch is not None
    assert (after.other_batch.batch_size.baseline, after.other_batch.batch_size.candidate) == (32, 64)
    assert abs(after.speedups["train"].ratio / before.speedups["train"].ratio - 2) < 1e-6
    assert after.speedups["inference_b1"] == before.speedups["inference_b1"]
    assert (after.account, after.limit) == (None, None)
    assert before.account is not None
    assert after.over_parent is not None
    assert after.over_parent.ratio == after.speedups["train"].ratio
    assert after.sentences[-1].startswith("Over float32, from which it was made, its speed-up of training is 3.20×")
    assert "training step" not in after.sentence


def test_other_batch_stands_in_a_table_of_its_own(project: SmallStudy) -> None:
    give_batch(project)
    result = compared(project)
    assert list(at_equal_batch(result)) == ["mixed_float16", "float16"]
    heads, (cells,) = batch_table(result)
    row = dict(zip(heads, cells, strict=True))
    assert (row["variant"], row["batch"]) == ("mixed_bfloat16", "64")
    assert "over float32 at 32" in row["speed-up"]
    note = "mixed_bfloat16 trains on batches of 64 with a largest learning rate of 0.01, in proportion to its batch"
    assert any(text.startswith(note) for text in result.notes or ())
    page, markdown = render_report(result), render_markdown(result)
    assert "At other batches" in page
    assert "| mean | float32 | mixed\\_bfloat16 |" not in markdown
    assert "| mean | float32 | mixed\\_float16 |" in markdown
    assert "| mixed\\_bfloat16 | 64 |" in markdown


def test_all_at_equal_batch_have_no_such_table(project: SmallStudy) -> None:
    result = compared(project)
    assert batch_table(result) == ([], [])
    assert "At other batches" not in render_report(result)


def test_better_batch_is_a_reason_with_a_change(project: SmallStudy) -> None:
    tried = (
        BatchTried(batch_size=32, peak_mib=10.0, examples_per_s=1000.0),
        BatchTried(batch_size=64, peak_mib=20.0, examples_per_s=1400.0),
        BatchTried(batch_size=128, peak_mib=40.0, examples_per_s=1300.0),
        BatchTried(batch_size=256),
    )
    project.edit_profile("mixed_bfloat16", largest_batch=LargestBatch(batch_size=128, tried=tried))
    reasons = {reason.code: reason for reason in compared(project).candidates["mixed_bfloat16"].reasons}
    change = reasons["small_batch"].change
    assert change is not None
    assert (change.key, change.before, change.to) == ("variants.mixed_bfloat16.batch_size", None, 64)
    assert change.at_most == 1.4
