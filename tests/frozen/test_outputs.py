"""Nine frozen studies, as they are and changed, say what they said: 432 outputs, of each a digest."""

from __future__ import annotations

import json

import pytest

from tests.frozen.outputs import DIGESTS, digests_of
from tests.frozen.test_frozen import STUDIES


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_output_is_as_it_was(name: str) -> None:
    """`python -m tests.frozen.outputs` writes what is meant to have changed."""
    expected = json.loads(DIGESTS.read_text(encoding="utf-8"))[name]
    found = dict(digests_of(name))
    assert found.keys() == expected.keys()
    assert [label for label, digest in found.items() if digest != expected[label]] == []
