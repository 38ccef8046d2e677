"""YAML with the line of every key, and every problem of the text at once.

Only what a study file needs: mappings with text keys, lists and scalars.  Duplicate keys are problems, not silent
losses.  Dates and other tags of YAML 1.1 become the text that was written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import yaml

from autotuner.errors import Problem

__all__ = ["MAX_BYTES", "Tree", "dotted", "parse_yaml"]

MAX_BYTES = 1_000_000
"""Larger texts are not study files."""
_MAX_NODES = 50_000

Path = tuple[str | int, ...]


def dotted(path: Path) -> str:
    """Return *path* as people write it: ``seeds[0].max_num_seqs``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(file)"


@dataclass(slots=True, kw_only=True)
class Tree:
    """The plain data of a YAML text, with lines."""

    data: object = None
    lines: dict[Path, int] = field(default_factory=dict)
    """Path → one-based line of its key (or list item)."""
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int | None:
        """Return the line of the deepest part of *path* that was written; parts that were not written are skipped."""
        written = self.written(path)
        return self.lines.get(written)

    def written(self, path: Path) -> Path:
        """Return *path* without the parts that do not occur in the text."""
        kept: Path = ()
        for part in path:
            if (*kept, part) in self.lines:
                kept = (*kept, part)
        return kept


class _Reader:
    """Turns one composed document into a :class:`Tree`."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self.loader = loader
        self.tree = Tree()
        self.open: set[int] = set()
        self.nodes = 0

    def read(self, node: yaml.Node, path: Path) -> object:
        self.nodes += 1
        if id(node) in self.open or self.nodes > _MAX_NODES:
            if self.nodes <= _MAX_NODES + 1:
                self._problem(node, path, "aliases that contain themselves or grow without end", "write it out plainly")
            return None
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self._item(child, path, index) for index, child in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self.open.discard(id(node))

    def _item(self, child: yaml.Node, path: Path, index: int) -> object:
        self.tree.lines[(*path, index)] = child.start_mark.line + 1
        return self.read(child, (*path, index))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else ""
            if not key:
                self._problem(key_node, path, "a key must be text", "write a name before the colon")
                continue
            here = (*path, key)
            if key in result:
                first = self.tree.lines[here]
                self._problem(key_node, here, f"given twice (first in line {first})", "keep one of the two")
                continue
            self.tree.lines[here] = key_node.start_mark.line + 1
            result[key] = self.read(value_node, here)
        return result

    def _scalar(self, node: yaml.Node, path: Path) -> object:
        if node.tag in {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:binary"}:
            return str(node.value)
        if node.tag.startswith("!") or node.tag.startswith("tag:yaml.org,2002:python"):
            self._problem(node, path, f"the tag {node.tag} is not supported", "write a plain value")
            return None
        try:
            value: object = self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            self._problem(node, path, f"cannot be read: {error}", "write a plain value")
            return None
        return value

    def _problem(self, node: yaml.Node, path: Path, message: str, remedy: str) -> None:
        name = dotted(path)
        value = str(node.value)[:60] if isinstance(node, yaml.ScalarNode) else ""
        line = node.start_mark.line + 1
        self.tree.problems.append(Problem(field=name, value=value, message=message, remedy=remedy, line=line))


def parse_yaml(text: str) -> Tree:
    """Return the tree of *text*; what is wrong with it is in ``problems``, never raised."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
    except (yaml.YAMLError, RecursionError) as error:
        return Tree(problems=[_unreadable(error)])
    reader = _Reader(loader)
    if node is not None:
        reader.tree.data = reader.read(node, ())
    return reader.tree


def _unreadable(error: Exception) -> Problem:
    mark = getattr(error, "problem_mark", None)
    return Problem(
        field="(file)",
        value="",
        message=f"not readable as YAML: {getattr(error, 'problem', None) or error}",
        remedy="check indentation, colons and quotes near that line",
        line=mark.line + 1 if mark is not None else None,
    )
