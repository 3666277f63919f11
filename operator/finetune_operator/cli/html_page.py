"""What every command that writes an HTML page needs first."""

from importlib.util import find_spec

from finetune_operator.cli.errors import CliError


def require_pages() -> None:
    """Raises CliError if the wheel is installed without its extra ``pages``."""
    if find_spec("jinja2") is None:
        raise CliError(
            "HTML pages need jinja2, which is not installed.",
            fix="Install the command with its extra pages, for example: uv tool install 'FILE.whl[pages]'",
        )
