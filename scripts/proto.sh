#!/usr/bin/env bash
# Generates the protocol's stubs into autotuner/v1 (committed; never edited).
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
"$python" -m grpc_tools.protoc -I protos --python_out=. --grpc_python_out=. --pyi_out=. protos/autotuner/v1/*.proto
