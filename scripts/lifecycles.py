#!/usr/bin/env python3
"""Draws the life cycles from their transition tables into ``docs/lifecycles.md``; ``--check`` only compares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuner.core.lifecycle import STUDY, TRIAL

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

PAGE = Path(__file__).parent.parent / "docs" / "lifecycles.md"
HEAD = """# Life cycles

Drawn by `scripts/lifecycles.py` from the tables in `autotuner/core/lifecycle.py`; do not edit.
What is not drawn is refused with `IllegalTransition` and changes nothing.
"""


def diagram(title: str, table: Mapping[tuple[Any, Any], StrEnum]) -> str:
    """Return one life cycle as a mermaid state diagram."""
    arrows = [f"    {source} --> {target}: {event}" for (source, event), target in table.items()]
    first = next(iter(table))[0]
    final = sorted({target for target in table.values() if all(source is not target for source, _ in table)})
    ends = [f"    {state} --> [*]" for state in final]
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *arrows, *ends, "```"]
    return f"\n## {title}\n\n" + "\n".join(lines) + "\n"


def page() -> str:
    """Return the whole page."""
    return HEAD + diagram("Trial", TRIAL) + diagram("Study", STUDY)


def main() -> None:
    """Write or check the page."""
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE} is not what the tables give: run scripts/lifecycles.py")


if __name__ == "__main__":
    main()
