"""Warm starts: a process that has imported the product forks the tests' Python processes.

Most of what a short Python process costs is its imports. Within `warm_starts`, `subprocess.Popen`, and so
asyncio, asks a warm parent for what would run `python -m MODULE` or `python FILE`. The warm parent has one
thread and no loop. It clones itself as a child of the process that asks: process ids, signals, waits, exit
statuses and parent-death signals are real. The clone takes arguments, directory, environment, streams and
session, and then runs the program as its `__main__`. What itself starts processes (`_LAUNCHERS`), a command
that starts services or a worker of pytest-xdist, finds a warm parent of its own: a fork of the first, before
that begins.

A start is cold, an interpreter of its own, wherever a program could tell the difference: with options of the
interpreter, or with another environment where an import reads it. `MESH_TEST_COLD`, set for a process or for
the whole run, makes starts cold. So they are on other systems than Linux.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import os
import pickle
import platform
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

COLD = "MESH_TEST_COLD"
"""Set in a process's environment, it makes that process an interpreter of its own."""
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
ALL_COLD = sys.platform != "linux" or platform.machine() not in _SYS_CLONE or COLD in os.environ
_PACKAGES = {"mesh", "tests", "bench", "pytest", "uvicorn"}
"""Modules that run warm: the product's, and those that import it or a user's file that does."""
_READ_EARLY = (
    *("PYTHON", "OTEL_P", "LC_", "LANG", "LD_", "MALLOC_", "OPENSSL_", COLD),
    *("ANTHROPIC_LOG", "OPENAI_LOG", "DEFER_PYDANTIC_BUILD"),
)
"""Variables, by how they begin, that are read before the program runs: by the interpreter or by imports. Of
OpenTelemetry's these are `OTEL_PYTHON_…` and `OTEL_PROPAGATORS`."""
_USUAL: dict[str, Any] = {
    "executable": None,
    "close_fds": True,
    "pass_fds": (),
    "restore_signals": True,
}
_USUAL |= {"gid": None, "gids": None, "uid": None, "umask": -1, "process_group": -1}
"""What a start asks of `Popen` that a clone can do."""
_IMPORTED = (
    *("mesh.service.logs", "mesh.cli", "mesh.cli.agent", "mesh.cli.dev", "mesh.cli.fleet", "mesh.cli.human"),
    *("mesh.cli.request", "mesh.cli.send", "mesh.agent._runtime", "mesh.guard.service", "mesh.service.run"),
    *("mesh.local.fleet", "mesh.testing", "mesh.ops.watch"),
)
_MAKES_WAY = re.compile(r"exec( [\w./:-]+)+")
_WORKER = "import sys;exec(eval(sys.stdin.readline()))"
"""What pytest-xdist starts its workers with, by execnet: `python -u -c` and this program."""
_IMPORTED_FOR = {
    "tests.mcp_server": ("mcp.server.mcpserver",),
    _WORKER: ("anthropic.resources.beta.messages", "mcp", "openai"),  # three seconds, else of each worker
}
"""What is imported when a module, or a worker, is first started."""
_LAUNCHERS = {"dev", "demo", "tests.drill", _WORKER}
"""What starts Python processes: their clones have a warm parent of their own."""
_READS_ENVIRONMENT = "mesh.service.failpoints"
"""The one module of the product that reads the environment as it is imported: each clone runs it anew."""
_LARGEST = 1 << 17
"""Bytes of a message."""
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_PR_GET_TID_ADDRESS = 40


# --- in the process that runs the tests -------------------------------------------------------------


class Start(NamedTuple):
    """What a clone is to be. It travels as a plain tuple."""

    arguments: Sequence[str]
    """The whole command line."""
    folder: str
    environment: Mapping[str, str]
    new_session: bool
    before: Callable[[], None] | None
    """The `preexec_fn`: a partial of a module's function."""


class WarmParent:
    """The warm parent of this process: a child that waits at the other end of `ours`."""

    def __init__(self, ours: socket.socket) -> None:
        self._ours = ours
        self._one_at_a_time = threading.Lock()
        self._read_early = read_early(os.environ)
        self._ready = False

    def takes(self, start: Start) -> bool:
        """Return True if no program can tell a clone that runs it from an interpreter of its own."""
        match start.arguments:
            case [sys.executable, "-m", module, *_]:
                known = module.partition(".")[0] in _PACKAGES
            case [sys.executable, "-u", "-c", program]:
                known = program == _WORKER
            case [sys.executable, file, *_]:
                known = file.endswith(".py")
            case _:
                known = False
        movable = start.before is None or isinstance(start.before, partial)
        return known and movable and read_early(start.environment) == self._read_early

    def start(self, start: Start, streams: Sequence[int]) -> int:
        """Return the process id of a new child of this process with these standard streams."""
        return self._ask(tuple(start), streams)

    def wait(self) -> None:
        """Wait until it has imported the product, before the first process of any kind is started.

        Later, a clone's start would stop this process's loop so long that servers give its connections up.
        """
        if not self._ready:
            self._ask(None)
            self._ready = True

    def _ask(self, message: object, streams: Sequence[int] = ()) -> int:
        with self._one_at_a_time:
            socket.send_fds(self._ours, [pickle.dumps(message)], streams)
            answer = self._ours.recv(32)
        if not answer:
            raise RuntimeError("the warm parent has ended")
        return int(answer)

    def serve(self, cold: Callable[..., None]) -> Callable[..., None]:
        """Return what `Popen._execute_child` is to be: this parent's clone, or as `cold` does it."""
        names = inspect.signature(cold)

        def execute_child(process: Any, *values: Any, **named: Any) -> None:
            self.wait()
            asked = names.bind(process, *values, **named).arguments
            environment = os.environ if asked["env"] is None else asked["env"]
            start = Start(
                _words(asked["args"], asked["shell"]),
                os.fsdecode(asked["cwd"] or os.getcwd()),
                {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
                asked["start_new_session"],
                asked["preexec_fn"],
            )
            usual = all(asked.get(name, value) == value for name, value in _USUAL.items())
            if not usual or not self.takes(start):
                cold(process, *values, **named)
                return
            streams = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
            process.pid = self.start(
                start, [number if given == -1 else given for number, given in enumerate(streams)]
            )
            process._child_created = True
            pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            process._close_pipe_fds(*(asked[each] for each in pipes))

        execute_child.warm = True  # type: ignore[attr-defined]
        return execute_child


def _words(args: Any, shell: bool) -> list[str]:
    """Return a command line; also one for a shell that only makes way: `exec`, and words of plain characters.

    Returns none for another shell's.
    """
    if shell:
        return args.split()[1:] if isinstance(args, str) and _MAKES_WAY.fullmatch(args) else []
    return [] if isinstance(args, str | bytes | os.PathLike) else [os.fsdecode(each) for each in args]


def read_early(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are read before the program runs, without the path of imports."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_EARLY) and name != "PYTHONPATH"
    }


@contextlib.contextmanager
def warm_starts() -> Iterator[None]:
    """Let Python processes that this process starts be clones of a warm parent, where that can be done.

    Enter it in the main thread: parent-death signals follow a thread. A launcher has one already.
    """
    popen: Any = subprocess.Popen
    if ALL_COLD or hasattr(popen._execute_child, "warm"):
        yield
        return
    ours, theirs = _pair()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), "-" * 8192],  # room for others' arguments
            stdin=subprocess.DEVNULL,
            env=environment | {"ROOM": "-" * 65_536},  # and for their environments
            pass_fds=(theirs.fileno(),),
        )
    try:
        with mock.patch.object(popen, "_execute_child", WarmParent(ours).serve(popen._execute_child)):
            yield
    finally:
        ours.close()
        process.wait()


def is_warm_parent(pid: int) -> bool:
    """Return True for a process that only waits to be asked for clones."""
    try:
        return os.fsencode(__file__) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


# --- in the warm parent, and in its clones ----------------------------------------------------------


def _serve(asked: socket.socket) -> tuple[Start, Sequence[int], int] | None:
    """Clone this process for every message until nobody can ask any more.

    In the clone, returns its `Start`, its streams, and what it closes when it has become what it is to be.
    """
    while True:
        message, streams, _, _ = socket.recv_fds(asked, _LARGEST, 3)
        if not message:
            return None
        _import(_IMPORTED)
        wanted = pickle.loads(message)
        if wanted is None:
            asked.send(b"0")
            continue
        start = Start(*wanted)
        for each in start.arguments[2:4]:
            _import(_IMPORTED_FOR.get(each, ()))
        ready, becoming = os.pipe()
        pid = _clone()
        if pid == 0:
            os.close(ready)
            return start, streams, becoming
        for stream in (*streams, becoming):
            os.close(stream)
        os.read(ready, 1)  # until the clone has its session: signals to its group reach it from now on
        os.close(ready)
        asked.send(str(pid).encode())


def _import(modules: Iterable[str]) -> None:
    """Import what is not there yet, as the clones will find it."""
    new = [each for each in modules if each not in sys.modules]
    if not new:
        return
    path = sys.path[:]
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    for module in new:
        importlib.import_module(module)
    sys.modules["mesh.service.logs"]._structlog()  # as a service gets it: without rich
    sys.path[:] = path
    gc.collect()
    gc.freeze()


def _clone() -> int:
    """Fork as `os.fork` does, but a child of our parent: CLONE_PARENT of clone(2).

    As glibc's fork does it, the clone's main thread learns its id; Python's own steps stand around the call.
    """
    libc, python = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi
    thread_id = ctypes.c_void_p()
    libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(thread_id))
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    python.PyOS_BeforeFork()
    pid = int(
        libc.syscall(_SYS_CLONE[platform.machine()], ctypes.c_ulong(flags), None, None, thread_id, thread_id)
    )
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


def _become(start: Start, streams: Sequence[int]) -> None:
    """Be as an interpreter that was started so."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if start.new_session:
        os.setsid()
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    time.tzset()
    _show(start)
    if start.before is not None:
        start.before()
    out: Any = sys.stdout
    out.reconfigure(line_buffering=out.isatty() and not out.write_through)
    importlib.reload(sys.modules[_READS_ENVIRONMENT])
    gc.enable()


def _show(start: Start) -> None:
    """Let `ps` and /proc show this process's own arguments and environment, not those of the warm parent."""
    places = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]
    arguments, arguments_end, environment, environment_end = map(int, places)
    pairs = [f"{name}={value}" for name, value in start.environment.items()]
    for begin, end, words in (
        (arguments, arguments_end, start.arguments),
        (environment, environment_end, pairs),
    ):
        shown = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - begin - 1]
        ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def _run(arguments: Sequence[str], path: Sequence[str]) -> None:
    """Run what `arguments` name, in this process, as its main program."""
    sys.orig_argv[:] = arguments
    search = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if arguments[1] == "-m":
        sys.argv[:] = arguments[2:]
        sys.path[:] = [str(Path.cwd()), *search, *path]
        runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)
    elif arguments[1] == "-u":
        sys.argv[:] = ["-c"]
        sys.path[:] = ["", *search, *path]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(arguments[3], vars(main))
    else:
        sys.argv[:] = arguments[1:]
        sys.path[:] = [str(Path(arguments[1]).resolve().parent), *search, *path]
        sys.modules["__main__"] = main = ModuleType("__main__")
        main.__file__ = str(Path(arguments[1]).absolute())
        exec(compile(Path(arguments[1]).read_bytes(), arguments[1], "exec"), vars(main))


def _run_to_its_end(arguments: Sequence[str], path: Sequence[str]) -> None:
    """Run it, and end with its status; the interpreter tells of an error, and of a word said in the end."""
    status = 0
    try:
        _run(arguments, path)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    _end(status)
    sys.exit(status)


def _end(status: int) -> None:
    """End this process as an interpreter does, but leave what was imported as it is.

    To take that apart costs more than all else about a clone: it copies every page. What the program itself
    has made is taken apart as ever. Returns if the output cannot be written: the interpreter says so.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.modules.pop("__main__", None)
    gc.collect()
    with contextlib.suppress(OSError):
        for each in (sys.stdout, sys.stderr):
            if each is not None and not each.closed:
                each.flush()
        os._exit(status)


def _main() -> None:
    own, *_ = sys.argv[1:]
    path = sys.path[1:]  # without this file's folder
    sys.path[:] = path
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a Ctrl-C at the terminal is for others
    gc.disable()
    with socket.socket(fileno=int(own)) as asked:
        os.set_inheritable(int(own), False)
        given = _serve(asked)
    own_parent = None
    while given is not None and _LAUNCHERS.intersection(given[0].arguments[2:4]):
        ours, theirs = _pair()
        with theirs:
            if os.fork() > 0:
                own_parent = ours
                break
            # It holds nothing of what the launcher was given, and clones children of the launcher.
            for each in (ours.detach(), *given[1], given[2]):
                os.close(each)
            given = _serve(theirs)
    if given is not None:
        start, streams, becoming = given
        _become(start, streams)
        os.close(becoming)
        if own_parent is not None:
            popen: Any = subprocess.Popen
            popen._execute_child = WarmParent(own_parent).serve(popen._execute_child)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _run_to_its_end(start.arguments, path)
    else:
        os._exit(0)  # nobody can ask any more


if __name__ == "__main__":
    _main()
