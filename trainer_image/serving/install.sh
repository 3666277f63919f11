#!/usr/bin/env bash
# vLLM on CPU, which serves what we export: see ../install.sh.
exec "$(dirname "${BASH_SOURCE[0]}")/../install.sh" serving
