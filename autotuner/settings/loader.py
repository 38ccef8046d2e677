"""Reads a study file and reports every problem at once, each with its line and what to write instead."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from autotuner.errors import Problem, StudyFileError
from autotuner.settings.consistency import inconsistencies
from autotuner.settings.study_file import AUTO, Section, StudyFile
from autotuner.settings.yaml_tree import MAX_BYTES, Tree, dotted, parse_yaml

__all__ = ["load_study", "parse_study"]

Place = tuple[str | int, ...]


def load_study(path: str | Path) -> StudyFile:
    """Return the study in the file *path*, with relative paths made absolute.

    Raises:
        StudyFileError: the file cannot be read or has problems; all of them are in ``problems``.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise _unreadable(file, f"has {size} bytes: not a study file", f"give a file below {MAX_BYTES} bytes")
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(file, "is not UTF-8 text", "save it as UTF-8") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _unreadable(
            file, f"cannot be read: {reason}", "check the path; autotuner init writes a new one"
        ) from error
    return parse_study(text, source=str(path), directory=file.resolve().parent)


def parse_study(text: str, *, source: str = "", directory: Path | None = None) -> StudyFile:
    """Return the study in *text*; paths in it are relative to *directory* and checked only where it is given.

    Raises:
        StudyFileError: with all problems.
    """
    tree = parse_yaml(text)
    problems = list(tree.problems)
    if tree.data is None and not problems:
        problems.append(_top("the file is empty", "write at least name: NAME; autotuner init writes a full one"))
    elif tree.data is not None and not isinstance(tree.data, dict):
        problems.append(_top("not a mapping", "write keys such as name: and model: at the left margin"))
    study: StudyFile | None = None
    if isinstance(tree.data, dict):
        study, found = _validate(tree.data, tree)
        unread = [problem.field for problem in tree.problems]
        problems += [problem for problem in found if not any(_related(problem.field, field) for field in unread)]
    if study is not None and directory is not None:
        study, found = _resolve_paths(study, tree, directory)
        problems += found
    elif directory is not None and isinstance(tree.data, dict):
        problems += _missing_model(tree, directory)
    if problems or study is None:
        raise StudyFileError(sorted(problems, key=lambda p: (p.line or 0, p.field)), source)
    return study.remember(source, tree.lines)


def _unreadable(file: Path, message: str, remedy: str) -> StudyFileError:
    return StudyFileError([Problem(field=str(file), value="", message=message, remedy=remedy)])


def _top(message: str, remedy: str) -> Problem:
    return Problem(field="(file)", value="", message=message, remedy=remedy)


def _validate(data: dict[str, object], tree: Tree) -> tuple[StudyFile | None, list[Problem]]:
    study: StudyFile | None = None
    problems: list[Problem] = []
    try:
        study = StudyFile.model_validate(data)
    except ValidationError as error:
        problems += _translate(error, tree)
    for name, section in _sound_sections(data, study):
        for finding in inconsistencies(section):
            place = (name, *finding.path)
            problems.append(
                Problem(
                    field=dotted(_visible(place, tree)),
                    value=finding.value,
                    message=finding.message,
                    remedy=finding.remedy,
                    line=tree.line(place),
                )
            )
    return study, problems


def _sound_sections(data: Mapping[str, object], study: StudyFile | None) -> Iterator[tuple[str, Section]]:
    """Yield the sections that are valid by themselves, also where the file as a whole is not."""
    for name, field in StudyFile.model_fields.items():
        if study is not None:
            value = getattr(study, name)
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section) and name in data:
            try:
                value = field.annotation.model_validate(data[name])
            except ValidationError:
                continue
        else:
            continue
        if isinstance(value, Section):
            yield name, value


def _translate(error: ValidationError, tree: Tree) -> Iterator[Problem]:
    for item in error.errors(include_url=False):
        place = tuple(part for part in item["loc"] if part != "[key]")
        message, remedy = _words(item["type"], item.get("ctx", {}), item["msg"], place)
        value = "" if item["type"] in {"missing", "extra_forbidden"} else _short(item["input"])
        yield Problem(
            field=dotted(_visible(place, tree, missing=item["type"] == "missing")),
            value=value,
            message=message,
            remedy=remedy,
            line=tree.line(place),
        )


def _words(kind: str, context: Mapping[str, object], text: str, place: Place) -> tuple[str, str]:
    """Return message and remedy for a kind of pydantic error."""
    if kind == "refused":
        return str(context["message"]), str(context["remedy"])
    if kind == "missing":
        return "missing", f"add {place[-1]}:"
    if kind == "extra_forbidden":
        known = _known_keys(place[:-1])
        near = difflib.get_close_matches(str(place[-1]), known, n=1, cutoff=0.5)
        return "unknown key", f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
    if "expected" in context:
        return "not one of the choices", f"write {context['expected']}"
    for key, words in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
        if key in context:
            return "out of range", f"give {words} {context[key]:.10g}"
    if kind == "string_pattern_mismatch":
        return "not a valid name", "use letters, digits, dot, dash and underscore (64 at most)"
    wanted = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "string": "text (in quotes where it looks like a number)",
        "dict": "a mapping (key: value)",
        "list": "a list",
        "tuple": "text or a list",
        "model": "a mapping (key: value)",
        "finite": "a finite number",
    }.get(kind.split("_", 1)[0])
    return (f"wrong type: {text[0].lower()}{text[1:]}", f"give {wanted}") if wanted else (text, "correct the value")


def _known_keys(place: Place) -> list[str]:
    """Return the keys of the section at *place*."""
    model: type[BaseModel] = StudyFile
    for part in place:
        field = model.model_fields.get(str(part))
        inner = _section_of(field.annotation) if field is not None else None
        if inner is None and field is None:
            continue
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _section_of(annotation: object) -> type[Section] | None:
    if (
        isinstance(annotation, type)
        and not isinstance(annotation, types.GenericAlias)
        and issubclass(annotation, Section)
    ):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _section_of(part))), None)


def _visible(place: Place, tree: Tree, *, missing: bool = False) -> Place:
    """Return *place* as the user wrote it: without the names that only the models know."""
    if place in tree.lines:
        return place
    written = tree.written(place)
    hidden = {"parameters"}
    unwritten = tuple(part for part in place[len(written) :] if part not in hidden)
    if not missing and tree.written(place)[-1:] == place[-1:]:
        return written
    return (*written, *(part for part in unwritten if part not in written))


def _related(field: str, other: str) -> bool:
    """Return whether one of two fields is the other or lies inside it."""
    short, long = sorted((field, other), key=len)
    return long == short or long.startswith((f"{short}.", f"{short}["))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _missing_model(tree: Tree, directory: Path) -> Iterator[Problem]:
    """Check the model of a file that has other problems."""
    model = tree.data.get("model") if isinstance(tree.data, dict) else None
    if isinstance(model, str) and model:
        problem = _model_path(model, directory)[1]
        if problem is not None:
            yield dataclasses.replace(problem, line=tree.line(("model",)))


def _resolve_paths(study: StudyFile, tree: Tree, directory: Path) -> tuple[StudyFile, list[Problem]]:
    problems: list[Problem] = []
    changes: dict[str, object] = {}
    model, problem = _model_path(study.model, directory)
    changes["model"] = model
    if problem is not None:
        problems.append(dataclasses.replace(problem, line=tree.line(("model",))))
    draft = study.engine.draft
    if draft is not None:
        path, problem = _model_path(draft.model, directory)
        if problem is not None:
            place = ("engine", "draft", "model")
            problems.append(dataclasses.replace(problem, field=dotted(place), line=tree.line(place)))
        draft = draft.model_copy(update={"model": path})
        changes["engine"] = study.engine.model_copy(update={"draft": draft})
    trace = study.workload.trace
    if trace is not None:
        file = (directory / Path(trace.path).expanduser()).resolve()
        if not file.is_file():
            problems.append(
                Problem(
                    field="workload.trace.path",
                    value=trace.path,
                    message="no such file",
                    remedy=f"paths are relative to the study file; looked at {file}",
                    line=tree.line(("workload", "trace", "path")),
                )
            )
        trace = trace.model_copy(update={"path": str(file)})
        changes["workload"] = study.workload.model_copy(update={"trace": trace})
    return study.model_copy(update=changes), problems


def _model_path(model: str, directory: Path) -> tuple[str, Problem | None]:
    """Return an absolute path for what is a path, the name itself for a hub name, and what is wrong with it."""
    if model == AUTO:
        return model, None
    path = (directory / Path(model).expanduser()).resolve()
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model
    if not path.exists():
        if not looks_like_path:
            return model, None
        remedy = f"check the path (looked at {path}), give a hub name such as org/model, or auto"
        return model, Problem(field="model", value=model, message="no such directory", remedy=remedy)
    if path.is_dir() and not (path / "config.json").is_file():
        remedy = "give the directory that holds config.json and the weights"
        return str(path), Problem(field="model", value=model, message="holds no config.json", remedy=remedy)
    return str(path), None
