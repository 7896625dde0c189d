"""A Kubernetes API server with controllers for a test. See :class:`ControlPlane`."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import threading

__all__ = ["ControlPlane", "StartError"]

#: Seconds until it is ready, on a busy machine.
START_SECONDS = 60
#: Seconds for the end of requests, then of the process.
STOP_SECONDS = 60


class StartError(Exception):
    """The executable is missing, or did not become ready; the message has its log."""


class ControlPlane:
    """A process of ``ferrokube all-in-one`` with its state in memory and a port and directory of its own.

    A context manager. ``flags`` are those of ``ferrokube all-in-one``. ``binary`` defaults to ``$FERROKUBE``, else
    the ``ferrokube`` in ``$PATH``. After ``start_seconds`` a start that has not become ready fails.
    """

    def __init__(self, *flags: str, binary: "str | os.PathLike | None" = None, start_seconds: float = START_SECONDS):
        self._flags = flags
        self._binary = binary
        self._start_seconds = start_seconds
        self._process = None
        self._directory = None
        #: URL of the API server, while it runs.
        self.url = ""

    @property
    def kubeconfig(self) -> pathlib.Path:
        """Credentials of an administrator, with embedded certificates."""
        if self._directory is None:
            raise StartError("the control plane does not run")
        return pathlib.Path(self._directory) / "data" / "admin.kubeconfig"

    @property
    def log(self) -> str:
        """What the process has logged."""
        if self._directory is None:
            return ""
        return (pathlib.Path(self._directory) / "log").read_text(errors="replace")

    def start(self) -> "ControlPlane":
        """Starts, and returns when it serves."""
        if self._process is not None:
            raise StartError("the control plane runs already")
        binary = self._binary or os.environ.get("FERROKUBE") or shutil.which("ferrokube")
        if binary is None:
            raise StartError("no ferrokube in $PATH: build it, or set $FERROKUBE to its path")
        self._directory = tempfile.mkdtemp(prefix="ferrokube-")
        folder = pathlib.Path(self._directory)
        flags = [f"--data-dir={folder / 'data'}", "--storage=memory", "--secure-port=0", *self._flags]
        try:
            with open(folder / "log", "wb") as log:
                self._process = subprocess.Popen(
                    [binary, "all-in-one", *flags],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            late = threading.Timer(self._start_seconds, self._process.kill)
            late.daemon = True
            late.start()
            # "ready in 12 ms: URL kubeconfig FILE", or the end of the process.
            line = self._process.stdout.readline()
            late.cancel()
            if not line.startswith("ready in "):
                raise StartError(f"{binary} {' '.join(flags)}: not ready: {line}{self.log}")
            self.url = line.split(": ", 1)[1].split(" kubeconfig ")[0]
        except OSError as error:
            self.stop()
            raise StartError(f"cannot start {binary}: {error}") from error
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends the process and removes its directory; may be called twice."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        directory, self._directory = self._directory, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
        self.url = ""

    def __enter__(self) -> "ControlPlane":
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()
