#!/usr/bin/env bash
# Generates the protocol's stubs into autotuner/v1 (committed; never edited).  With --check nothing is written: stubs
# are generated elsewhere and compared with the committed ones.
set -euo pipefail
cd "$(dirname "$0")/.."

# The output root is the repository's root: the stubs import each other as autotuner.v1.…
generate() {
    .venv/bin/python -m grpc_tools.protoc -I protos --python_out="$1" --grpc_python_out="$1" --pyi_out="$1" protos/autotuner/v1/*.proto
}

if [ "${1:-}" = --check ]; then
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    generate "$fresh"
    if ! diff -ru --exclude=__init__.py --exclude=__pycache__ autotuner/v1 "$fresh/autotuner/v1"; then
        echo "proto: the committed stubs differ from the protocol: run 'make proto' and commit" >&2
        exit 1
    fi
else
    generate .
fi
