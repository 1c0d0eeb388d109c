"""What is measured of a variant."""

from __future__ import annotations

from collections.abc import Sequence

from halfstep.params.schema import Variant
from halfstep.words.text import TRAIN, inference_measure

# Settings that change training alone.
OF_TRAINING = frozenset({"batch_size", "learning_rate", "input_threads", "cache_input", "prefetch_to_device"})


def measures_of(
    entry: Variant, baseline: Variant, inference_batch_sizes: Sequence[int], *, trains: bool = True
) -> list[str]:
    """Training, and inference unless the entry differs from the baseline's in settings of training alone.

    Without `trains`, training is left out: it is not measured.
    """
    before, after = baseline.model_dump(), entry.model_dump()
    differing = {key for key in after if after[key] != before[key]} - {"parent"}
    is_inferred = not differing or differing - OF_TRAINING
    return [*([TRAIN] if trains else ()), *(map(inference_measure, inference_batch_sizes) if is_inferred else ())]
