#!/usr/bin/env bash
# The tests' independent judge, transformers on torch: see ../install.sh.
exec "$(dirname "${BASH_SOURCE[0]}")/../install.sh" reference
