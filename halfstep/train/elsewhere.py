"""Trains in a process of its own: a script, or in the user's interpreter. Does not import TensorFlow."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from halfstep.errors import HalfstepError, ModelError
from halfstep.system.child import Child, Lost, serve
from halfstep.system.fork_server import stop_servers
from halfstep.tasks.trial import Trial
from halfstep.train.epochs import Epoch
from halfstep.train.interruption import Interruption
from halfstep.train.request import PROGRAM, Request, Trained

_POLL_S = 0.2


def train_elsewhere(
    trial: Trial, request: Request, interruption: Interruption, on_epoch: Callable[[Epoch], None]
) -> Trained:
    """Trains in another process, and waits for its end.

    Args:
        trial: what is trained.
        request: how.
        interruption: a signal that it notes ends the process, after a checkpoint.
        on_epoch: called at the end of each epoch.

    Raises:
        HalfstepError: what the process has raised.
        ModelError: it died.
        KeyboardInterrupt, SystemExit: a signal has ended it.
    """
    try:
        with (
            interruption.deferred(),
            Child(
                f"train-{trial.name}-{trial.seed}",
                serve,
                (PROGRAM, trial, request),
                trial.variant.variables,
                preload=PROGRAM,
                python=trial.variant.python,
                may_have_children=True,
            ) as child,
        ):
            return _answer(child, trial, interruption, on_epoch)
    finally:
        stop_servers()


def _answer(child: Child, trial: Trial, interruption: Interruption, on_epoch: Callable[[Epoch], None]) -> Trained:
    is_told = False
    while True:
        has_answered = child.connection.poll(_POLL_S)
        if interruption.requested and not is_told:
            is_told = True
            with suppress(ProcessLookupError):
                os.kill(child.process.pid or 0, signal.SIGTERM)
        if not has_answered:
            continue
        answer = child.receive(object, HalfstepError)
        if isinstance(answer, Epoch):
            on_epoch(answer)
        elif isinstance(answer, Trained):
            return answer
        elif isinstance(answer, HalfstepError):
            raise answer
        elif interruption.requested:
            interruption.raise_for_signal()
        else:
            why = answer if isinstance(answer, Lost) else "it was ended by a signal"
            raise ModelError(f"{trial.subject}: the process of train {trial.name} seed {trial.seed}: {why}")
