"""Clients are tried against the real API: its fixtures are those of its own tests."""

from tests.web.conftest import api, apis, control, dag_api, dags, impatient, order_of, tokens

__all__ = ["api", "apis", "control", "dag_api", "dags", "impatient", "order_of", "tokens"]
