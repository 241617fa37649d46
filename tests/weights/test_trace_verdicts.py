"""What a comparison of traces says: nothing wrong is called the same, and the place of a mistake is named."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from mslaunch.runtime.trace import find_step, torch_trace
from tests.beds.traced import Called, Network, Tensor, record
from tests.conftest import Bench

MOST = 1000


def compare(bench: Bench, a: dict[str, Any], b: dict[str, Any], *options: str, most: int = MOST) -> tuple[int, str]:
    """The exit code of a comparison, and what is said."""
    record(bench.folder / "a", most, **a)
    record(bench.folder / "b", most, **b)
    done = bench.mslaunch("trace", "compare", "a", "b", *options)
    assert not done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize("shape", [(4, 1000), (2, 3, 5, 7, 11), (1, 8, 512), (1001,), (25, 40, 3)])
def test_of_a_large_output_values_of_every_channel_are_kept(shape: tuple[int, ...]) -> None:
    """As many of each as of any other, in every dimension."""
    size = int(np.prod(shape))
    kept = np.arange(MOST) * find_step(size, MOST) % size
    assert len(set(kept)) == MOST
    for place, length in zip(np.unravel_index(kept, shape), shape, strict=True):
        counts = np.bincount(place, minlength=length)
        assert counts.max() - counts.min() <= max(1, 0.1 * counts.max()), (shape, length)


def test_channels_that_differ_are_found_in_a_part_of_the_values(bench: Bench) -> None:
    """Every other feature of a layer is wrong, and half of the values are kept."""
    right = np.random.default_rng(1).normal(size=(1, 16, 128)).astype(np.float32)
    wrong = right.copy()
    wrong[..., 1::2] += 1000
    code, told = compare(bench, {"fc": Tensor(right)}, {"fc": Tensor(wrong)}, most=right.size // 2)
    assert code == 1
    assert "not every value was kept, so a part and the statistics of all are compared (fc: 1024 of 2048)" in told


@pytest.mark.parametrize("value", [50.0, np.nan], ids=["number", "nan"])
def test_a_value_that_is_not_kept_is_found_by_the_statistics(bench: Bench, value: float) -> None:
    """They are of all values."""
    right = np.ones(5000)
    wrong = right.copy()
    kept = set(np.arange(MOST) * find_step(5000, MOST) % 5000)
    wrong[next(index for index in range(5000) if index not in kept)] = value
    assert compare(bench, {"fc": Tensor(right)}, {"fc": Tensor(wrong)})[0] == 1


@pytest.mark.parametrize("most", [30, 60, 1000])
def test_traces_that_keep_other_numbers_of_values_are_compared(bench: Bench, most: int) -> None:
    """By those that both have kept, also where one has kept all."""
    record(bench.folder / "a", 40, fc=Tensor(np.arange(100)))
    record(bench.folder / "b", most, fc=Tensor(np.arange(100)))
    done = bench.mslaunch("trace", "compare", "a", "b", "--json")
    assert (done.returncode, json.loads(done.stdout)["outputs"][0]["compared_values"]) == (0, min(40, most))


LOGITS, HIDDEN = Tensor([[1.0, 2.0]]), Tensor([1.0, 2.0, 3.0])
LONE: dict[str, Any] = {"fc": LOGITS, "": LOGITS}
RETURNED: list[tuple[Any, Any]] = [
    (LOGITS, {"logits": LOGITS}),
    (LOGITS, {"hidden": HIDDEN, "logits": LOGITS}),
    ((HIDDEN, LOGITS), LOGITS),
    ((LOGITS, HIDDEN), {"logits": LOGITS, "hidden": HIDDEN}),
]


@pytest.mark.parametrize(("first", "second"), RETURNED)
def test_a_lone_tensor_a_tuple_and_a_dictionary_are_compared(bench: Bench, first: Any, second: Any) -> None:
    """Outputs of one call belong together by their shapes where one side has other places than the other."""
    code, told = compare(bench, {"": first}, {"": second}, "--json")
    found = json.loads(told)
    assert (code, found["whole_compared"]) == (0, True)
    assert all(pair["first"]["shape"] == pair["second"]["shape"] for pair in found["outputs"])


def test_a_wrong_output_in_a_dictionary_is_a_difference(bench: Bench) -> None:
    """The other network returns the tensor alone."""
    code, told = compare(bench, {"fc": LOGITS, "": {"logits": LOGITS}}, {"fc": LOGITS, "": Tensor([[1.0, 3.0]])})
    assert (code, "first difference: (network) [logits]" in told) == (1, True)


OTHERS: list[tuple[Any, Any]] = [
    ({"logits": LOGITS}, {"scores": LOGITS}),
    ({"loss": HIDDEN, "logits": LOGITS}, {"loss": HIDDEN, "scores": LOGITS}),
    (LOGITS, {"x": HIDDEN, "y": HIDDEN}),
]


@pytest.mark.parametrize(("first", "second"), OTHERS)
def test_networks_whose_own_outputs_have_no_partner_are_not_the_same(bench: Bench, first: Any, second: Any) -> None:
    """Though all modules agree, the exit code is 1 and the reason is told."""
    code, told = compare(bench, {"fc": LOGITS, "": first}, {"fc": LOGITS, "": second})
    assert (code, "not compared: what the networks themselves return" in told) == (1, True)
    assert "mslaunch: incomplete comparison: " in told


def test_a_network_that_was_not_called_is_not_the_same(bench: Bench) -> None:
    """Only its modules were."""
    network = Network(**LONE)
    with torch_trace(network, str(bench.folder / "b")):
        network.layers["fc"]()
    record(bench.folder / "a", **LONE)
    done = bench.mslaunch("trace", "compare", "a", "b")
    assert (done.returncode, "(network) was not called in b" in done.stdout) == (1, True)


def test_a_network_that_was_called_less_often_is_not_the_same(bench: Bench) -> None:
    """What its further calls return has no partner."""
    record(bench.folder / "a", **LONE)
    network = Network(**LONE)
    with torch_trace(network, str(bench.folder / "b")):
        network()
        network()
    done = bench.mslaunch("trace", "compare", "a", "b")
    assert (done.returncode, "only in b: fc (call 2), (network) (call 2)\n" in done.stdout) == (1, True)
    assert "Call both as often" in done.stdout


def test_a_network_that_has_failed_is_not_the_same(bench: Bench) -> None:
    """The exception is shown, and the modules that were not called are named."""
    record(bench.folder / "a", fc=LOGITS, head=LOGITS)
    network = Network(fc=LOGITS, head=LOGITS)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory\nin detail")

    network.layers["head"].register_forward_hook(fail)
    with pytest.raises(RuntimeError), torch_trace(network, str(bench.folder / "b")):
        network()
    done = bench.mslaunch("trace", "compare", "a", "b")
    assert done.returncode == 1
    assert "mslaunch: b: ended by RuntimeError: out of memory\n" in done.stdout
    assert "mslaunch: head was not called in b\n" in done.stdout


def test_a_network_that_has_failed_at_once_is_refused(bench: Bench) -> None:
    """There is nothing to compare, and the exception is the reason."""
    record(bench.folder / "a", fc=LOGITS)
    with pytest.raises(RuntimeError), torch_trace(Network(fc=LOGITS), str(bench.folder / "b")):
        raise RuntimeError("out of memory")
    done = bench.mslaunch("trace", "compare", "a", "b")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mslaunch: b: no module has returned (ended by RuntimeError: out of memory). Call")


def outputs(*differences: float, dtype: Any = np.float32, first: float = 1.0) -> dict[str, Any]:
    """Layers whose outputs differ by so much from those of outputs(0, 0, ...)."""
    return {f"layer{n}": Tensor(np.array([first, 0.5 + one], dtype)) for n, one in enumerate(differences)}


@pytest.mark.parametrize("difference", [1.3e-4, 1.9e-4])
def test_a_jump_is_a_difference_by_default(bench: Bench, difference: float) -> None:
    """That of GELU's approximation, and that of another epsilon in LayerNorm."""
    code, told = compare(bench, outputs(0, 0, 0), outputs(2e-7, difference, difference))
    assert (code, f"layer1 (Layer, Layer): {difference:.1e} is more than 1e-05; 2 of 3 outputs differ" in told) == (
        1,
        1,
    )


def test_differences_that_grow_slowly_are_none(bench: Bench) -> None:
    """Rounding adds up over the depth of a network."""
    grown = [1e-7 * 1.5**depth for depth in range(20)]
    code, told = compare(bench, outputs(*[0] * 20), outputs(*grown))
    assert code == 0, told
    assert "20 outputs, the same with differences that grow slowly, to 2.2e-04 at layer19" in told


def test_differences_that_grow_large_are_some(bench: Bench) -> None:
    """However slowly they do."""
    grown = [1e-7 * 2**depth for depth in range(20)]
    assert compare(bench, outputs(*[0] * 20), outputs(*grown))[0] == 1


@pytest.mark.parametrize(("difference", "code"), [(5e-3, 0), (5e-2, 1)])
def test_half_types_may_differ_by_more(bench: Bench, difference: float, code: int) -> None:
    """From the first layer on, and in layers after it that are float32 again."""
    half = outputs(difference, dtype=np.float16)
    after = Tensor(np.array([1.0, 0.5 + difference], np.float32))
    assert compare(bench, {**outputs(0), "x": Tensor([1.0, 0.5])}, {**half, "x": after})[0] == code


def test_a_tolerance_holds_for_all_outputs(bench: Bench) -> None:
    """Also where the default would be another."""
    code, told = compare(bench, outputs(0, 0), outputs(0, 5e-3), "--tolerance", "0.01")
    assert (code, "2 outputs, the same within 0.01" in told) == (0, True)


def test_one_output_differs(bench: Bench) -> None:
    """One is not many."""
    assert "1 of 1 output differs" in compare(bench, outputs(0), outputs(1))[1]


X, Y = Tensor([1.0, 2.0]), Tensor([1.0, 3.0])


def chain(*steps: tuple[Tensor, Tensor], whole: tuple[Tensor, Tensor] = (X, X)) -> dict[str, Any]:
    """Two modules and their network, each by what it is given and returns."""
    names = ("fc1", "fc2")
    layers = {name: Called((given,), returned) for name, (given, returned) in zip(names, steps, strict=True)}
    return {**layers, "": Called((whole[0],), whole[1])}


HINTS: dict[str, tuple[dict[str, Any], str]] = {
    "between": (
        chain((X, X), (Y, Y)),
        "what fc2 is given differs (input 0: 3.3e-01): look between fc1 and fc2",
    ),
    "itself": (chain((X, X), (X, Y)), "what fc2 is given is the same: look at fc2 itself"),
    "after": (
        chain((X, X), (X, X), whole=(X, Y)),
        "what (network) is given is the same: look at what it computes after fc2",
    ),
    "before": (chain((Y, Y), (Y, Y)), "what fc1 is given differs (input 0: 3.3e-01): look before fc1"),
    "inputs": (
        chain((Y, Y), (Y, Y), whole=(Y, Y)),
        "the networks are given other inputs (input 0: 3.3e-01): give both the same",
    ),
}


@pytest.mark.parametrize("kind", HINTS)
def test_it_is_told_where_to_look(bench: Bench, kind: str) -> None:
    """By what the first module that differs is given."""
    code, told = compare(bench, chain((X, X), (X, X)), HINTS[kind][0])
    assert (code, told.splitlines()[-1]) == (1, f"mslaunch: {HINTS[kind][1]}")


def test_inputs_by_name_and_by_number_are_compared(bench: Bench) -> None:
    """One network calls its module with a keyword, the other without."""
    code, told = compare(bench, {"fc": Called((), X, {"x": X})}, {"fc": Called((X,), Y)})
    assert (code, told.splitlines()[-1]) == (1, "mslaunch: what fc is given is the same: look at fc itself")
