"""Square matrices beside transposed ones: their shape does not tell whether they are to be transposed too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mslaunch.checkpoint.names import Rule, first_match
from mslaunch.checkpoint.weights import Weight


def square_words(weights: Mapping[str, Weight], rules: Sequence[Rule], transposed: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence on square matrices that no rule transposes, where others are or have to be transposed."""
    matrices = [name for name, weight in weights.items() if len(weight.shape) == 2]
    by_rule = {name for name in matrices if (found := first_match(rules, name)) and found[0].transpose is not None}
    if not by_rule and not transposed:
        return ()
    squares = [name for name in matrices if name not in by_rule and len(set(weights[name].shape)) == 1]
    if not squares:
        return ()
    more = " …" if len(squares) > 1 else ""
    count = "1 square matrix fits" if len(squares) == 1 else f"{len(squares)} square matrices fit"
    return (
        f"{count} either way, transposed or not ({squares[0]}{more}): shapes cannot tell, so check with the network",
    )
