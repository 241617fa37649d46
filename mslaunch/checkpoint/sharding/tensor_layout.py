"""How one parameter is cut over the devices of a stage, and which box of the whole tensor each device holds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
"""Where a slice lies in the whole tensor: from and to, per dimension."""

MOST_DEVICES = 1 << 20
_MOST_AXES = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """What a strategy file says of one parameter."""

    devices: tuple[int, ...]
    """The device matrix; the last axis counts fastest."""
    axes: tuple[tuple[int, ...], ...]
    """Per dimension the axes that it is cut along, outermost first; none where it is whole."""
    optimizer: int = 0
    """How many ways optimizer parallelism cuts dimension 0 further; -1 is over all replicas, 0 not at all."""
    shape: Shape | None = None
    """The whole shape, where the file records it."""

    @property
    def world(self) -> int:
        return prod(self.devices)

    @property
    def tensor_cuts(self) -> tuple[int, ...]:
        """Into how many parts tensor parallelism cuts each dimension."""
        return tuple(prod(self.devices[axis] for axis in axes) for axes in self.axes)

    @property
    def optimizer_cut(self) -> int:
        """Into how many parts optimizer parallelism cuts dimension 0 on top of that."""
        if self.optimizer == 0 or not self.axes:
            return 1
        return self.optimizer if self.optimizer > 0 else self.world // prod(self.tensor_cuts)

    @property
    def cuts(self) -> tuple[int, ...]:
        """Into how many parts each dimension is cut, all in all."""
        cuts = self.tensor_cuts
        return (cuts[0] * self.optimizer_cut, *cuts[1:]) if cuts else ()

    @property
    def cut_dimension(self) -> int | None:
        """The dimension that tensor parallelism cuts most; one that it names counts, even on a single device."""
        dimensions = [index for index, axes in enumerate(self.axes) if axes]
        return max(dimensions, key=lambda index: self.tensor_cuts[index]) if dimensions else None

    def problem(self) -> str | None:
        """Say what is impossible about this layout, if anything is."""
        if not self.devices or any(size < 1 for size in self.devices):
            return f"its device matrix is {list(self.devices)}"
        if len(self.devices) > _MOST_AXES or self.world > MOST_DEVICES:
            return f"its device matrix is of over {_MOST_AXES} axes or {MOST_DEVICES} devices"
        used = [axis for axes in self.axes for axis in axes]
        if any(not 0 <= axis < len(self.devices) for axis in used):
            return f"its tensor map names an axis that the device matrix {list(self.devices)} does not have"
        if len(set(used)) < len(used):
            return "its tensor map cuts along one axis twice"
        if self.world % prod(self.cuts):
            return f"it is cut into {prod(self.cuts)} slices, which {self.world} devices cannot share evenly"
        return self._shape_problem()

    def _shape_problem(self) -> str | None:
        if self.shape is None:
            return None
        if len(self.shape) != len(self.axes):
            return f"its shape {list(self.shape)} has not as many dimensions as its tensor map"
        uneven = [size for size, cut in zip(self.shape, self.cuts, strict=True) if size < 1 or size % cut]
        return f"its shape {list(self.shape)} cannot be cut as its tensor map says" if uneven else None


def everything(shape: Shape) -> Box:
    """Return the box of the whole tensor."""
    return tuple((0, size) for size in shape)


def whole_shape(layout: Layout, slice_shape: Shape) -> Shape:
    """Return the shape of the whole tensor, given that of a slice."""
    return tuple(size * cut for size, cut in zip(slice_shape, layout.cuts, strict=True))


def box(layout: Layout, shape: Shape, device: int) -> Box:
    """Return which part of the whole tensor a device holds."""
    place = _coordinates(layout.devices, device)
    indices = [_index(layout.devices, place, axes) for axes in layout.axes]
    if layout.optimizer_cut > 1:
        used = {axis for axes in layout.axes for axis in axes}
        replicas = tuple(axis for axis in range(len(layout.devices)) if axis not in used)
        replica = _index(layout.devices, place, replicas) % layout.optimizer_cut
        indices[0] = indices[0] * layout.optimizer_cut + replica
    sizes = [size // cut for size, cut in zip(shape, layout.cuts, strict=True)]
    return tuple((index * size, (index + 1) * size) for index, size in zip(indices, sizes, strict=True))


def _coordinates(devices: tuple[int, ...], device: int) -> tuple[int, ...]:
    place = []
    for size in reversed(devices):
        device, at = divmod(device, size)
        place.append(at)
    return tuple(reversed(place))


def _index(devices: tuple[int, ...], place: tuple[int, ...], axes: tuple[int, ...]) -> int:
    index = 0
    for axis in axes:
        index = index * devices[axis] + place[axis]
    return index


def box_shape(part: Box) -> Shape:
    return tuple(to - since for since, to in part)


def intersection(first: Box, second: Box) -> Box | None:
    """Return what two boxes have in common; None where that is nothing."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))
    return None if any(since >= to for since, to in both) else both
