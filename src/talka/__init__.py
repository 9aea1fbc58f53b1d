"""Talka runs load tests written in Python on every core you give it.

Names are loaded when they are first used (PEP 562): `talka --help` must not wait for an event loop it does not need.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from talka.client.sync import Client as Client
    from talka.engine.clients.deadlines import Timeout as Timeout
    from talka.engine.clients.requests import Form as Form
    from talka.engine.handlers.inline import run_dag_inline as run_dag_inline
    from talka.errors import Invalid as Invalid
    from talka.errors import TalkaError as TalkaError
    from talka.nodes.api import run as run
    from talka.nodes.api import run_blocking as run_blocking
    from talka.report.document import ResultDocument as ResultDocument
    from talka.work.arguments import URL as URL
    from talka.work.arguments import Auth as Auth
    from talka.work.arguments import Cookies as Cookies
    from talka.work.arguments import Data as Data
    from talka.work.arguments import Directory as Directory
    from talka.work.arguments import File as File
    from talka.work.arguments import FileGlob as FileGlob
    from talka.work.arguments import Headers as Headers
    from talka.work.arguments import Params as Params
    from talka.work.dags.pipeline import Dag as Dag
    from talka.work.dsl import Provide as Provide
    from talka.work.dsl import Skip as Skip
    from talka.work.dsl import Use as Use
    from talka.work.dsl import Workflow as Workflow
    from talka.work.dsl import action as action
    from talka.work.dsl import check as check
    from talka.work.dsl import depends as depends
    from talka.work.dsl import metric as metric
    from talka.work.dsl import on_evict as on_evict
    from talka.work.dsl import on_start as on_start
    from talka.work.dsl import on_stop as on_stop
    from talka.work.dsl import setup as setup
    from talka.work.dsl import state as state
    from talka.work.dsl import step as step
    from talka.work.dsl import teardown as teardown
    from talka.work.feeds import Feed as Feed
    from talka.work.feeds import between as between
    from talka.work.handlers import HandlerTask as HandlerTask
    from talka.work.handlers import command as command
    from talka.work.handlers import handler as handler
    from talka.work.responses import CustomResponse as CustomResponse
    from talka.work.responses import HTTPResponse as HTTPResponse
    from talka.work.shapes import ConstantRate as ConstantRate
    from talka.work.shapes import ConstantVUs as ConstantVUs
    from talka.work.shapes import CustomRate as CustomRate
    from talka.work.shapes import CustomVUs as CustomVUs
    from talka.work.shapes import IterationsPerVU as IterationsPerVU
    from talka.work.shapes import RampingRate as RampingRate
    from talka.work.shapes import RampingVUs as RampingVUs
    from talka.work.shapes import SharedIterations as SharedIterations

    __version__: str

_HOMES = {
    "talka.client.sync": "Client",
    "talka.engine.clients.deadlines": "Timeout",
    "talka.engine.clients.requests": "Form",
    "talka.engine.handlers.inline": "run_dag_inline",
    "talka.errors": "Invalid TalkaError",
    "talka.nodes.api": "run run_blocking",
    "talka.report.document": "ResultDocument",
    "talka.work.arguments": "URL Auth Cookies Data Directory File FileGlob Headers Params",
    "talka.work.dsl": "Provide Skip Use Workflow action check depends metric on_evict on_start on_stop setup state "
    "step teardown",
    "talka.work.feeds": "Feed between",
    "talka.work.handlers": "HandlerTask command handler",
    "talka.work.dags.pipeline": "Dag",
    "talka.work.responses": "CustomResponse HTTPResponse",
    "talka.work.shapes": (
        "ConstantRate ConstantVUs CustomRate CustomVUs IterationsPerVU RampingRate RampingVUs SharedIterations"
    ),
}
_WHERE = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        return importlib.import_module("talka.version").VERSION
    if name not in _WHERE:
        raise AttributeError(f"module 'talka' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
