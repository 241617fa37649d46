"""The server of the page: what it answers, and how it is started."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mslaunch.errors import MslaunchError, NoSuchRun, NotReadyError, RequestError, limit_of
from mslaunch.masking.documents import mask_texts
from mslaunch.masking.free_text import mask_text
from mslaunch.metrics.rows import Source
from mslaunch.run.compare import Section, compare_runs, format_value
from mslaunch.run.find import list_runs
from mslaunch.run.metrics_file import last_values
from mslaunch.run.paths import earlier_path
from mslaunch.run.run import Run
from mslaunch.text import plain
from mslaunch.ui import log_text, page
from mslaunch.ui.access import LARGEST_HEAD, AccessGuard, PageAccess
from mslaunch.ui.bounds import LIVE, bounded
from mslaunch.ui.curves import NOT_DRAWN, kind_of, thin_series
from mslaunch.ui.library import Library

POINTS = 600
SHORT = 300  # characters of a value


def compare(runs: Sequence[Run], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the curves of runs, and where the runs differ; secrets are masked, also those of the environment."""
    comparison = compare_runs([run.folder for run in runs], environment)
    code = []
    for change in comparison.code:
        diff = "\n".join(plain(line)[:SHORT] for line in change.diff)
        code.append({"path": plain(change.path), "run": plain(change.run), "kind": change.kind, "diff": diff})
    return {
        "names": [plain(run.name) for run in runs],
        "curves": [curve for run in runs for curve in _curves(run)],
        "sections": [_section(section) for section in comparison.sections],
        "code": code,
        "equal_files": comparison.equal_files,
        "without_code": bounded(comparison.without_code, SHORT),
    }


def _section(section: Section) -> dict[str, Any]:
    rows = []
    for difference in section.differences:
        rows.append([difference.name, *(None if value is None else format_value(value) for value in difference.values)])
    return {"title": section.title, "equal": section.equal, "rows": bounded(rows, SHORT)}


def _curves(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the curves of a run's first rank, attempt by attempt, by the time since its own start."""
    with closing(run.metrics()) as metrics:
        table = metrics.table
        rank = min((source.rank for source in table.sources if source.rank is not None), default=None)
        own = [source for source in table.sources if source.rank is not None and source.rank == rank]
        first = [series.time[0] for source in own for series in table.of(source).values()]
        for source in own:
            for name, series in table.of(source).items():
                if name not in NOT_DRAWN:
                    who = {"kind": "rank", "run": plain(run.name), "rank": source.rank, "attempt": source.attempt}
                    yield {**who, "name": name, **thin_series(series, min(first), POINTS)}


LABELS = {"rank": ("rank",), "host": ("host",), "device": ("host", "device")}
"""What tells the sources of each kind apart, beside the run and the name of the number."""


class RunCollector(Collector):
    """Collects anew with every scrape."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def collect(self) -> Iterator[GaugeMetricFamily]:
        summaries = self._library.summaries()
        states = GaugeMetricFamily("mslaunch_runs", "Runs of the folder, by state.", labels=["state"])
        for state, count in Counter(run["state"] for run in summaries).items():
            states.add_metric([state], count)
        families = {
            kind: GaugeMetricFamily(
                f"mslaunch_{kind}_value",
                f"Last number that a {kind} of a running job told, by its name.",
                labels=["run", *labels, "metric"],
            )
            for kind, labels in LABELS.items()
        }
        for run in summaries:
            if run["state"] == "running":
                self._add(families, run)
        yield states
        yield from families.values()

    def _add(self, families: dict[str, GaugeMetricFamily], summary: dict[str, Any]) -> None:
        try:
            run = self._library.find(summary["name"])
        except MslaunchError:
            return
        numbers = last_values(run.folder.metrics, summary["ranks"] or 1)
        newest: dict[tuple[Any, ...], Source] = {}
        for source in numbers:
            newest[source[1:]] = max(source, newest.get(source[1:], source), key=lambda candidate: candidate.attempt)
        for source in newest.values():
            kind = kind_of(source)
            who = [str(getattr(source, label)) for label in LABELS[kind]]
            for name, value in numbers[source].items():
                families[kind].add_metric([run.name, *who, name], float(value))


def scrape(library: Library) -> bytes:
    """Return everything in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(RunCollector(library))
    return generate_latest(registry)


PORT = 8390
PORTS_TRIED = 20
MOST_COMPARED = 8
LONGEST_SEARCH = 500
MOST_RANKS = LIVE.sources
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
Answer = Callable[[Request], Response]


class Answers:
    """What the page can ask for. All of it reads and may take a moment, so it runs in threads."""

    def __init__(self, library: Library, may_stop: bool) -> None:
        self._library = library
        self._may_stop = may_stop

    def routes(self) -> list[Route]:
        texts = {"/script.js": (page.script, "text/javascript"), "/style.css": (page.style, "text/css")}
        own = [Route("/", _with_errors(lambda _: Response(page.live_page("mslaunch"), media_type="text/html")))]
        own += [Route(path, _text(make, kind)) for path, (make, kind) in texts.items()]
        for read in (self.runs, self.run, self.log, self.search, self.compare):
            own.append(Route(f"/api/{read.__name__}", _with_errors(read)))
        for act in (self.stacks, self.stop):
            own.append(Route(f"/api/{act.__name__}", _with_errors(act), methods=["POST"]))
        return [*own, Route("/metrics", _with_errors(self.metrics))]

    def runs(self, request: Request) -> Response:
        text = JSONResponse(self._library.summaries()).body
        tag = hashlib.sha256(text).hexdigest()[:24]
        return _not_changed(request, tag) or _tagged(text, tag)

    def run(self, request: Request) -> Response:
        tag, text = self._library.document(_name(request), _ranks(request))
        return _not_changed(request, tag) or _tagged(text, tag)

    def log(self, request: Request) -> Response:
        """A window of a log: from `at` on, the one that ends at `before`, or the last one."""
        run, path, times = self._log_of(request)
        mask = partial(mask_text, secrets=self._library.secrets(_name(request)))
        before, at = _number(request, "before"), _number(request, "at")
        if before is not None:
            return JSONResponse(asdict(log_text.window_before(run.path, path, before, mask=mask)))
        window = log_text.window(run.path, path, at, with_rest="rest" in request.query_params, mask=mask)
        when = log_text.times_of(run.path, times, window) if at is None else []
        return JSONResponse({**asdict(window), "times": when})

    def search(self, request: Request) -> Response:
        run, path, _ = self._log_of(request)
        text = request.query_params.get("find", "")
        if not 0 < len(text) <= LONGEST_SEARCH:
            raise RequestError(f"find: 1 to {LONGEST_SEARCH} characters are wanted, got {len(text)}.")
        mask = partial(mask_text, secrets=self._library.secrets(_name(request)))
        return JSONResponse(asdict(log_text.search(run.path, path, text, _number(request, "at") or 0, mask)))

    def compare(self, request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("name")))
        if not 1 < len(names) <= MOST_COMPARED:
            raise RequestError(f"Choose 2 to {MOST_COMPARED} runs to compare, got {len(names)}.")
        tag = self._library.tag(names)
        if known := _not_changed(request, tag):
            return known
        comparison = compare([self._library.find(name) for name in names], os.environ)
        return _tagged(JSONResponse(comparison).body, tag)

    def stacks(self, request: Request) -> Response:
        groups = mask_texts(self._library.find(_name(request)).stacks(), self._library.secrets(_name(request)))
        return JSONResponse({"stacks": ["\n".join(map(plain, group.split("\n"))) for group in groups]})

    def stop(self, request: Request) -> Response:
        if not self._may_stop:
            raise RequestError("Stopping is off. Start `mslaunch ui` with --allow-stop.")
        return JSONResponse({"state": self._library.find(_name(request)).stop().state})

    def metrics(self, _request: Request) -> Response:
        return Response(scrape(self._library), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _log_of(self, request: Request) -> tuple[Run, Path, Path]:
        run = self._library.find(_name(request))
        rank, attempt = _number(request, "rank") or 0, _number(request, "attempt")
        log, times = run.folder.log(rank), run.folder.log_times(rank)
        if attempt is not None and earlier_path(log, attempt).exists():
            return run, earlier_path(log, attempt), earlier_path(times, attempt)
        return run, log, times


def _tagged(text: bytes | memoryview, tag: str) -> Response:
    return Response(text, media_type="application/json", headers={"ETag": f'"{tag}"'})


def _not_changed(request: Request, tag: str) -> Response | None:
    """Say that the page has this already; None where it has not."""
    if request.headers.get("if-none-match", "").removeprefix("W/") != f'"{tag}"':
        return None
    return Response(status_code=304, headers={"ETag": f'"{tag}"'})


def _name(request: Request) -> str:
    return request.query_params.get("name", "")


def _ranks(request: Request) -> tuple[int, ...]:
    ranks: list[int] = []
    for first, last in _RANGE.findall(request.query_params.get("ranks", "")[:LONGEST_SEARCH]):
        ranks += range(int(first), int(last or first) + 1)[:MOST_RANKS]
    return tuple(ranks[:MOST_RANKS])


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise RequestError(f"{name}: expected a whole number, got {plain(text)[:40]!r}.")
    return int(text)


def _text(make: Callable[[], str], kind: str) -> Answer:
    return lambda _: Response(make(), media_type=kind)


def _with_errors(answer: Answer) -> Answer:
    """Turn errors into one sentence."""

    def answered(request: Request) -> Response:
        try:
            return answer(request)
        except NoSuchRun as error:
            return _error(404, str(error))
        except MslaunchError as error:
            return _error(400, str(error))
        except (OSError, ValueError, MemoryError) as error:
            return _error(500, str(limit_of(error) or f"{type(error).__name__}: {error}"))

    return answered


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": plain(text)}, status_code=status)


def listen(host: str, port: int | None) -> socket.socket:
    """Listen on a port; where none is named, on the usual one or the next that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [port] if port is not None else [*range(PORT, PORT + PORTS_TRIED), 0]
    for number in tried:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            listening.listen(128)
            return listening
        except OSError as error:
            listening.close()
            failure = error
        except OverflowError:
            listening.close()
            raise RequestError(f"--port {number}: a port is a number from 0 to 65535.") from None
    fix = "Give another --port, or leave it out and a free one is chosen." if port else "Give another --host."
    raise NotReadyError(f"{host}:{tried[0]}: cannot listen there ({failure.strerror}). {fix}")


def names_of(host: str) -> frozenset[str]:
    """Return the names by which this machine is known, where others may reach the server."""
    if host in ("127.0.0.1", "::1", "localhost"):
        return frozenset()
    return frozenset({host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()})


SHORTEST_TOKEN = 20
LONGEST_TOKEN = 500


def serve_runs(
    runs_dir: str, host: str, port: int | None, token_file: str | None, may_stop: bool, tell: Callable[[str], None]
) -> None:
    """Show the runs of a folder until a signal ends the program."""
    list_runs(Path(runs_dir))  # a folder that cannot be read is told now
    token = read_or_make_token(Path(token_file)) if token_file else secrets.token_urlsafe(32)
    listening = listen(host, port)
    bound = listening.getsockname()[1]
    access = PageAccess(token, f"mslaunch_{bound}", names_of(host))
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    address = f"[{name}]" if ":" in name else name
    tell(f"http://{address}:{bound}/?token={token}")
    if names_of(host):
        tell("note: others can reach this server, and nothing is encrypted on the way; an SSH tunnel would be safer")
    tell(f"Shows the runs in {plain(str(Path(runs_dir).absolute()))}. Ctrl-C ends it.")
    routed = Starlette(routes=Answers(Library(runs_dir, may_stop), may_stop).routes())
    config = uvicorn.Config(
        AccessGuard(GZipMiddleware(routed, minimum_size=2000, compresslevel=4), access),
        log_level="warning",
        access_log=False,  # requests are logged nowhere
        lifespan="off",
        ws="none",
        http="h11",  # which bounds what it reads of a request before it asks anybody
        h11_max_incomplete_event_size=2 * LARGEST_HEAD,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[listening])


def read_or_make_token(path: Path) -> str:
    """Return the token of a file, which is made where it is not there; others must not be able to read it."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_token(path)
    except OSError as error:
        raise NotReadyError(f"{path}: cannot write a token ({error.strerror}). Name another --token-file.") from None
    token = secrets.token_urlsafe(32)
    with os.fdopen(file, "w") as written:
        written.write(f"{token}\n")
    return token


def _read_token(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise RequestError(
                f"{path}: others can read the token. Run chmod 600 {path}, or name another --token-file."
            )
        token = path.read_text(errors="replace")[: LONGEST_TOKEN + 1].strip()
    except OSError as error:
        raise NotReadyError(f"{path}: cannot read a token ({error.strerror}). Name another --token-file.") from None
    is_plain = token.isascii() and token.replace("-", "").replace("_", "").isalnum()
    if not is_plain or not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN:
        raise RequestError(
            f"{path}: a token of {SHORTEST_TOKEN} letters and digits or more is wanted. Remove it: a new one is made."
        )
    return token
