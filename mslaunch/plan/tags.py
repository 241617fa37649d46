"""Tags: the words by which people find runs again."""

from __future__ import annotations

import re

WHAT_A_TAG_IS = "up to 64 letters, digits and any of . _ : / = + -, with a letter or digit first"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/=+-]{0,63}")


def is_tag(text: str) -> bool:
    """Tell whether a run may have this tag."""
    return _TAG.fullmatch(text) is not None
