"""Which arms live at once, where not all of them do, and in which order."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from stages import files
from stages.profile.differences import bridge_of
from stages.profile.records import ArmRecord

Block = tuple[str, ...]


class Blocks:
    """The blocks of arms that live at once.

    Args:
        order: draws their order.

    Attributes:
        blocks: in the order of the arms; empty if all arms live at once.
    """

    def __init__(self, order: random.Random) -> None:
        self._order = order
        self._next: list[Block] = []
        self.blocks: list[Block] = []

    def replace(self, blocks: Sequence[Block]) -> None:
        """From here on, the arms of these blocks live at once."""
        self.blocks, self._next = list(blocks), []

    def in_next_order(self) -> Sequence[Block | None]:
        """The blocks in the order in which they are measured next; one block, None, for all arms.

        The order is random, and the next one its reverse, so that a linear drift of the machine cancels.
        """
        if not self.blocks:
            return [None]
        if self._next:
            found, self._next = self._next, []
        else:
            found = self._order.sample(self.blocks, len(self.blocks))
            self._next = found[::-1]
        return found


def pairs(records: Mapping[str, ArmRecord], baseline: str) -> list[Block]:
    """The baseline with every other arm, and each bridging arm with its candidates; none without a baseline."""
    if baseline not in records:
        return []
    others = [name for name in records if name != baseline]
    settings = records[baseline].settings
    bridges = {name: bridge_of(records[name].settings, settings) for name in filter(files.is_variant, others)}
    return [
        *((baseline, name) for name in others),
        *((bridge, name) for name, bridge in bridges.items() if bridge is not None),
    ]
