"""Looks at the model under all variants, each in a process of its own."""

from __future__ import annotations

from halfstep.errors import AuditError
from halfstep.params import Params
from halfstep.prepare.images.sources import image_form, open_source
from halfstep.prepare.trying import run_trial, servers
from halfstep.results.audit import ModelAudit
from halfstep.tasks.spec import TaskSpec

_MODULE = "halfstep.audit.looking"  # it imports TensorFlow


def audits_of(settings: Params) -> dict[str, ModelAudit]:
    """What `look` finds under each variant of `train.variants`.

    Raises:
        AuditError: the model cannot be built; the message names the variant.
        DataError: the folder of the images cannot be listed.
    """
    shape, classes, seed = None, 0, settings.train.seeds[0]
    if settings.task.uses_data_and_model:
        form = image_form(settings.data)
        shape, classes = form.shape, len(open_source(settings.data, form).classes)
    audits: dict[str, ModelAudit] = {}
    entries = {name: settings.variants[name] for name in settings.train.variants}
    with servers(_MODULE, entries.values()):
        for name, entry in entries.items():
            spec = TaskSpec.of(settings, name)
            answer = run_trial(f"{name}-{seed}", _MODULE, entry, spec, seed, shape, classes)
            if isinstance(answer, str):
                raise AuditError(f"{name}: {answer}")
            audits[name] = answer
    return audits
