"""Ways to write a file, and what of them changes: the rank's own copy, the run's copy in code/, or the project.

`p` is the path of a file of the project, `d` the folder that holds it, `b` its name, `n` a new name
beside it, `u` one elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Owner = Literal["rank", "run", "project"]
KINDS = ("small", "large", "linked")
"""A file of up to 1 MB, which is copied into code/; a larger one; a small one in a folder that is one link."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to write, by Python code, and who owns what it changes for each kind of file."""

    name: str
    code: str
    owners: tuple[Owner, Owner, Owner] = ("rank", "rank", "rank")


SEEN: tuple[Owner, Owner, Owner] = ("rank", "rank", "rank")
UNSEEN: tuple[Owner, Owner, Owner] = ("run", "project", "project")
"""A write that goes through the links: nobody but the kernel sees it."""
BY_NAME: tuple[Owner, Owner, Owner] = ("rank", "rank", "project")
"""A name is replaced, unseen: the link of the rank, but in a linked folder the project's own."""


def _sh(command: str) -> str:
    return f"subprocess.run({command!r}, shell=True, check=True, env={{**os.environ, 'p': p, 'n': n, 'u': u}})"


WAYS = (
    Way('`open(p, "w")`', "open(p, 'w').write(M)"),
    Way('`open(p, "a")`', "open(p, 'a').write(M)"),
    Way('`open(p, "r+")`', "open(p, 'r+').write(M)"),
    Way('`open(n, "x")`', "open(n, 'x').write(M)"),
    Way("`pathlib.Path.write_text`", "pathlib.Path(p).write_text(M)"),
    Way("`pathlib.Path.open`", "pathlib.Path(p).open('ab').write(b'mine')"),
    Way("`pathlib.Path.touch`", "pathlib.Path(p).touch()"),
    Way("`io.FileIO`", "io.FileIO(p, 'r+').write(b'mine')"),
    Way("`codecs.open`", "codecs.open(p, 'w', 'utf-8').write(M)"),
    Way("`os.open`, to write", "os.write(os.open(p, os.O_WRONLY), b'mine')"),
    Way("`os.open`, to append", "os.write(os.open(p, os.O_RDWR | os.O_APPEND), b'mine')"),
    Way("`os.open` with `O_TRUNC` alone", "os.open(p, os.O_RDONLY | os.O_TRUNC)"),
    Way("`os.truncate`", "os.truncate(p, 1)"),
    Way("`mmap`", "f = open(p, 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0:1] = b'm'; m.flush()"),
    Way("`os.copy_file_range`", "os.copy_file_range(os.open(__file__, 0), os.open(p, os.O_WRONLY), 9)"),
    Way("`fileinput`, in place", "for line in fileinput.input(p, inplace=True): print(M)"),
    Way("`tempfile` and `os.replace`", "t = tempfile.NamedTemporaryFile(dir=d, delete=False); os.replace(t.name, p)"),
    Way("`logging.FileHandler`", "logging.FileHandler(p).stream.write(M)"),
    Way("`RotatingFileHandler`", "h = RotatingFileHandler(p, maxBytes=9, backupCount=1); h.doRollover()"),
    Way("`csv.writer`", "csv.writer(open(p, 'w')).writerow([M])"),
    Way("`pickle.dump`", "pickle.dump(M, open(p, 'wb'))"),
    Way("`gzip.open`", "gzip.open(p, 'wb').write(b'mine')"),
    Way("`zipfile`, to append", "z = zipfile.ZipFile(p, 'a'); z.writestr(M, M); z.close()"),
    Way("`tarfile.extractall`", "tarfile.open(archive(b)).extractall(d)"),
    Way("`sqlite3.connect`", "sqlite3.connect(n).execute('create table t (x)')"),
    Way("`sqlite3.connect` by URI", "os.truncate(p, 0); s(p).execute('create table t (x)')"),
    Way("`shutil.copy` over it", "shutil.copy(__file__, p)"),
    Way("`shutil.copytree` over its folder", "os.mkdir(u); open(f'{u}/{b}', 'w'); c(u, d)"),
    Way("`shutil.move` over it", "open(u, 'w').write(M); shutil.move(u, p)"),
    Way("`shutil.rmtree` of its folder", "shutil.rmtree(d)"),
    Way("`os.remove`", "os.remove(p)"),
    Way("`os.rename`", "os.rename(p, n)"),
    Way("`os.replace` over it", "open(u, 'w').write(M); os.replace(u, p)"),
    Way("`os.link`, then a write by the new name", "os.link(p, n); open(n, 'a').write(M)"),
    Way("`os.symlink`, then a write by the new name", "os.symlink(os.path.abspath(p), n); open(n, 'a').write(M)"),
    Way("`os.symlink` to its folder, then a write", "os.symlink(d, u); open(f'{u}/{b}', 'a').write(M)"),
    Way("`os.chmod`", "os.chmod(p, 0o640)"),
    Way("`os.utime`", "os.utime(p, (1, 1))"),
    Way("`os.mkdir` beside it", "os.mkdir(n)"),
    Way("`os.chdir`, then a write", "os.chdir(d); open(b, 'a').write(M)"),
    Way("a path with `..`", "open(f'{d}/{2 * chr(46)}/{os.path.basename(d)}/{b}', 'a').write(M)"),
    Way("`os.path.realpath`, then a write", "open(os.path.realpath(p), 'a').write(M)"),
    Way("`pathlib.Path.resolve`, then a write", "pathlib.Path(p).resolve().write_text(M)"),
    Way("`threading`", "t = threading.Thread(target=lambda: open(p, 'a').write(M)); t.start(); t.join()"),
    Way("`os.fork`", "c = os.fork() or (open(p, 'a').write(M), os._exit(0)); os.waitpid(c, 0)"),
    Way("`multiprocessing` with fork", "j = fork.Process(target=append, args=(p,)); j.start(); j.join()"),
    Way("`numpy.save`", "numpy.save(open(p, 'wb'), numpy.zeros(3))"),
    Way("`numpy.ndarray.tofile`", "numpy.zeros(3).tofile(p)"),
    Way("`numpy.memmap`", "a = numpy.memmap(p, 'u1', 'r+'); a[0] = 1; a.flush()"),
    Way("`mindspore.save_checkpoint`", "save(n)"),
    Way("`mindspore.save_checkpoint` over it", "save(p)"),
    Way("`mindspore.mindrecord.FileWriter`", "record(n)", BY_NAME),
    Way("`sh`: `mv` over it", _sh('echo mine > "$u"; mv "$u" "$p"'), BY_NAME),
    Way("`sh`: `sed -i`", _sh("sed -i '1s/^/mine/' \"$p\""), BY_NAME),
    Way("`sh`: `rm`", _sh('rm "$p"'), BY_NAME),
    Way("`sh`: a new file beside it", _sh('echo mine > "$n"'), BY_NAME),
    Way("`sh`: `>`", _sh('echo mine > "$p"'), UNSEEN),
    Way("`sh`: `>>`", _sh('echo mine >> "$p"'), UNSEEN),
    Way("`sh`: `cp` over it", _sh('echo mine > "$u"; cp "$u" "$p"'), UNSEEN),
    Way("`sh`: `tee -a`", _sh('echo mine | tee -a "$p" > /dev/null'), UNSEEN),
    Way("`sh`: `truncate`", _sh('truncate -s 1 "$p"'), UNSEEN),
    Way("`sh`: `dd conv=notrunc`", _sh('echo mine | dd of="$p" conv=notrunc status=none'), UNSEEN),
    Way("`sh`: `chmod`", _sh('chmod 640 "$p"'), UNSEEN),
    Way("`os.system`", "assert os.system(f'echo mine >> {p}') == 0", UNSEEN),
    Way(
        "another Python by `subprocess`",
        "subprocess.run([sys.executable, '-c', f'open({p!r}, \"a\").write(\"m\")'])",
        UNSEEN,
    ),
    Way("`multiprocessing` with spawn", "j = spawn.Process(target=append, args=(p,)); j.start(); j.join()", UNSEEN),
    Way("C: `fopen`", "libc.fclose(ctypes.c_void_p(fopen(p.encode(), b'w')))", UNSEEN),
    Way("C: `open` to append", "libc.write(libc.open(p.encode(), os.O_WRONLY | os.O_APPEND), b'mine', 4)", UNSEEN),
    Way("C: `rename` over it", "open(u, 'w').write(M); assert libc.rename(u.encode(), p.encode()) == 0", BY_NAME),
    Way("`os.open` with `dir_fd`", "os.open(b, os.O_WRONLY | os.O_TRUNC, dir_fd=os.open(d, 0))", UNSEEN),
    Way("`os.fchdir`, then a write", "os.fchdir(os.open(d, 0)); open(b, 'w')", BY_NAME),
    Way(
        "a path from `__file__`",
        "open(os.path.join(os.path.dirname(__file__), p), 'a').write(M)",
        ("run", "run", "run"),
    ),
)

SCRIPT = """
import codecs, csv, ctypes, fileinput, functools, gzip, io, logging, mmap, multiprocessing, os, pathlib, pickle, shutil
import sqlite3, subprocess, sys, tarfile, tempfile, threading, traceback, zipfile
from logging.handlers import RotatingFileHandler

M = "mine"
fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
libc = ctypes.CDLL(None)
fopen = libc.fopen
fopen.restype = ctypes.c_void_p
c = functools.partial(shutil.copytree, dirs_exist_ok=True)


def s(path):
    return sqlite3.connect(f"file:{path}?mode=rw", uri=True)


def append(path):
    open(path, "a").write(M)


def archive(name):
    with tarfile.open(u, "w") as file:
        file.add(__file__, name)
    return u


def save(path):
    ms.save_checkpoint([{"name": "w", "data": ms.Tensor([1.0])}], path)


def record(path):
    from mindspore.mindrecord import FileWriter

    writer = FileWriter(path, 1)
    writer.add_schema({"x": {"type": "int32"}}, "test")
    writer.write_raw_data([{"x": 1}])
    writer.commit()


if __name__ == "__main__":
    import mindspore as ms
    import numpy

    for number, (code, kinds) in enumerate(WAYS):
        for kind, p in kinds.items():
            child = os.fork()
            if child:
                if os.waitpid(child, 0)[1]:
                    print("failed", number, kind, code)
                continue
            try:
                d, b = os.path.split(p)
                n, u = f"{d}/new.ckpt", f"own{number}.{kind}"
                exec(code)
                sys.stdout.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
"""


def path_of(number: int, kind: str) -> str:
    """The file of the project that a way changes."""
    folder = f".way{number}" if kind == "linked" else f"way{number}/{kind}"
    return f"{folder}/{'f' * 240}.ckpt"  # a long name: what is put in its place first must not be longer


def table() -> str:
    """The page's table."""
    rows = "".join(f"| {way.name} | {' | '.join(way.owners)} |\n" for way in WAYS)
    return f"| way to write | small file | large file | in a linked folder |\n|---|---|---|---|\n{rows}"
