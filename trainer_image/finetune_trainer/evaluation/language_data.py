"""What the benchmark ``ifeval`` needs of NLTK and langdetect, from packages of the image: nothing is fetched."""

import tempfile
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from shutil import copytree
from typing import Any, NoReturn

import langdetect
import nltk

#: NLTK's punkt_tab of English in the package that carries it, of which no code is imported.
_PUNKT = "llama_index/core/_static/nltk_cache/tokenizers/punkt_tab/english"


@cache
def provide() -> tempfile.TemporaryDirectory[str]:
    """Makes NLTK find its data, and refuse to download any; makes langdetect's answers the same each time.

    Returns the folder, which exists as long as the process.
    """
    # A copy: NLTK refuses files with several links, which installers make, and files of another user.
    folder = tempfile.TemporaryDirectory(prefix="nltk-")
    source = Path(str(distribution("llama-index-core").locate_file(_PUNKT)))
    copytree(source, Path(folder.name, "tokenizers/punkt_tab/english"))
    nltk.data.path[:] = [folder.name]
    nltk.download = _refuse
    langdetect.DetectorFactory.seed = 0
    return folder


def _refuse(*asked: Any, **_options: Any) -> NoReturn:
    raise RuntimeError(f"NLTK's data is not in the trainer image, and none is fetched: {asked[:1]}")
