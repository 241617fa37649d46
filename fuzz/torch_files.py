"""Files of torch.save, as `mslaunch ckpt import` reads them; of zip files mostly the pickle is changed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

from fuzz.mutate import LARGEST, mutate_bytes
from fuzz.run import Border, samples
from mslaunch.checkpoint.moving.weights import plan_weights
from mslaunch.weights.diff import Files
from mslaunch.weights.opening import open_weights
from mslaunch.weights.transfer import guess_names

_SMALL = 1 << 20
_INSTRUCTIONS = tuple(b"()]}0122.RbcQNtlduseahjrq\x80\x81\x85\x86\x87\x88\x89\x8a\x8c\x93\x94\x95oiXKMJ")
_NAMES = (
    *(b"cos\nsystem\n", b"ctorch\nSize\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n"),
    *(b"cargparse\nNamespace\n", b"c__builtin__\nset\n", b"ctorch._tensor\n_rebuild_from_type_v2\n"),
    *(b"ccollections\ndefaultdict\n", b"ctorch\nComplexFloatStorage\n", b"ctimm\nModel\n"),
)


def _mutate_pickle(random: Random, data: bytes) -> bytes:
    """Change some instructions for others, so that the stack machine is what is tried."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 2, 4, 16))):
        at = random.randrange(len(changed))
        kind = random.randrange(4)
        if kind == 0:
            changed[at] = random.choice(_INSTRUCTIONS)
        elif kind == 1:
            changed[at:at] = bytes([random.choice(_INSTRUCTIONS)]) * random.choice((1, 1, 3, 2000, 100_000))
        elif kind == 2:
            changed[at:at] = random.choice(_NAMES)
        else:
            del changed[at : at + random.choice((1, 2, 10))]
    return bytes(changed[:LARGEST]) if changed else data


def _mutate(random: Random, data: bytes, known: tuple[bytes, ...]) -> bytes:
    if random.random() < 0.3:
        return mutate_bytes(random, data, known)
    if not data.startswith(b"PK"):
        head = min(len(data), 700)
        return _mutate_pickle(random, data[:head]) + data[head:]
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith("data.pkl"):
                wild = random.random() < 0.3
                content = mutate_bytes(random, content, (content,)) if wild else _mutate_pickle(random, content)
            new.writestr(entry.filename, content)
    return made.getvalue()


def _open(folder: Path) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        path = folder / "a.pth"
        path.write_bytes(data)
        weights = guess_names(open_weights(path)).weights
        plan_weights(list(weights.values()), None)
        with ExitStack() as opened:
            files = Files(opened)
            for weight in list(weights.values())[:20]:
                if weight.nbytes < _SMALL:
                    files.block(weight, tuple((0, size) for size in weight.shape))

    return read


BORDERS = (Border("torch", samples("torch"), _mutate, _open),)
