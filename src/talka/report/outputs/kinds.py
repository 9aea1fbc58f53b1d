"""Every kind of output, made of its target: those that come with Talka, and classes of the user's own."""

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from talka.report.files import BadOutput, FilePlace
from talka.report.junit import junit_xml
from talka.report.markdown import markdown
from talka.report.measurements import FamilyOutput
from talka.report.outputs.csv_files import CsvFiles
from talka.report.outputs.jsonl import JsonLines
from talka.report.outputs.line_protocol import line_protocol
from talka.report.outputs.otel import OTLP_PATH, send_metrics
from talka.report.outputs.output import EXAMPLES, Output, ResultOutput, told
from talka.report.outputs.prometheus import exposition, remote_write
from talka.report.outputs.statsd import Graphite, StatsD
from talka.report.outputs.targets import SendLimits, address, http_place


def made(kind: str, target: str, what: str, limits: SendLimits) -> Output:
    match kind:
        case "jsonl":
            return JsonLines(target, what)
        case "csv":
            return CsvFiles(target, what)
        case "junit":
            return ResultOutput(kind, junit_xml, FilePlace(target, what).replace)
        case "markdown":
            file = FilePlace(target, what)
            return ResultOutput(kind, lambda document: markdown(document).encode("utf-8", "replace"), file.append)
        case "prometheus":
            return ResultOutput(kind, exposition, FilePlace(target, what).replace)
        case "remote-write":
            place = http_place(target, what, default_path="/api/v1/write", limits=limits)
            return FamilyOutput(kind, lambda families, _: remote_write(place, families))
        case "otlp":
            collector = http_place(target, what, default_path=OTLP_PATH, limits=limits)
            return FamilyOutput(kind, lambda families, job: send_metrics(collector, families, job))
        case "influx":
            return line_protocol(target, what, limits)
        case "statsd":
            return StatsD(address(target, what), limits)
        case "graphite":
            return Graphite(address(target, what), limits)
        case _:
            return custom(target, what)


def custom(target: str, what: str) -> Output:
    """An object of a user's class, made without arguments."""
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier() or not file.endswith(".py"):
        raise BadOutput(f"{what}: {target!r} names no class of a file: write {EXAMPLES['custom']}")
    path = Path(file)
    if not path.is_file():
        raise BadOutput(f"{what}: there is no file {file}")
    try:
        made = getattr(imported(path), name, None)
        if not isinstance(made, type):
            raise BadOutput(f"{what}: {file} has no class {name}")
        output: Any = made()
        missing = [verb for verb in ("rows", "finish", "close") if not callable(getattr(output, verb, None))]
        if not isinstance(getattr(output, "name", None), str):
            output.name = name
    except BadOutput:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - users' code may raise anything
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path.resolve())
        ]
        line = f":{lines[-1]}" if lines else ""
        raise BadOutput(f"{what}: {file}{line}: {name} cannot be made: {told(error)}") from None
    if missing:
        raise BadOutput(f"{what}: {name} of {file} lacks {', '.join(missing)}: an output has rows, finish and close")
    checked: Output = output
    return checked


def imported(path: Path) -> Any:
    # A name of our own: a file called json.py must not hide the library's.
    name = f"talka_output_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
