"""Kubernetes objects, and parts of them, as plain JSON."""

from collections.abc import Mapping
from typing import Any

type Object = Mapping[str, Any]
