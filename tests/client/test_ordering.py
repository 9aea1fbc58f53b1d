"""From a test file to what is submitted."""

import hashlib
import io
import zipfile
from pathlib import Path

import msgspec
import pytest

import talka
from talka.client.ordering import NoFile, OrderOptions, SubmittedByImport, file_of, submission_of
from talka.control.load.planning import Overrides
from talka.engine.loader import being_imported
from talka.errors import Invalid
from talka.wire.entries import encode_order
from talka.wire.orders import JobOrder
from talka.work.thresholds import BadThreshold

FILE = """
from talka import URL, ConstantVUs, HTTPResponse, Provide, Use, Workflow, depends, state, step


class Login(Workflow):
    @step()
    async def sign_in(self) -> None: ...


@depends(Login)
class Shop(Workflow):
    load = ConstantVUs(3, "10s")
    thresholds = ["failed < 1%"]

    @step()
    async def front(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse:
        return await self.client.http.get(url)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / f"shop_{tmp_path.name}.py"
    path.write_text(FILE)
    return str(path)


def test_a_file_becomes_an_order_and_a_bundle(file: str) -> None:
    options = OrderOptions(
        overrides=Overrides(vus=7),
        thresholds=("front.rate > 1/s",),
        cores=4,
        seed=5,
        engine="native",
        env={"A": "b"},
        allow_partial=True,
        submitted_by="ann",
    )

    order, bundle, specs = submission_of(file, [], options)

    assert order.name == Path(file).name
    assert (order.bundle.digest, order.bundle.size_bytes) == (hashlib.sha256(bundle).hexdigest(), len(bundle))
    assert order.bundle.env == {"A": "b"}
    assert order.bundle.file in zipfile.ZipFile(io.BytesIO(bundle)).namelist()
    assert [workflow.name for workflow in order.workflows] == ["Login", "Shop"] == [spec.name for spec in specs]
    shop = order.workflows[1]
    assert (shop.depends_on, shop.plan.vus, shop.is_test, shop.load) == (("Login",), 7, True, specs[1].load)
    assert [(node.name, node.measured) for node in shop.nodes] == [("front", True)]
    assert [rule.text for rule in shop.thresholds] == ["failed < 1%"]
    assert [rule.text for rule in order.thresholds] == ["front.rate > 1/s"]
    assert order.settings.engine == "native"
    assert (order.cores, order.settings.seed, order.allow_partial, order.submitted_by) == (4, 5, True, "ann")
    assert msgspec.msgpack.decode(encode_order(order), type=JobOrder) == order


def test_only_named_workflows_and_what_they_depend_on_are_ordered(file: str) -> None:
    order = submission_of(file, ["Login"], OrderOptions(name="nightly")).order

    assert ([workflow.name for workflow in order.workflows], order.name) == (["Login"], "nightly")


def test_a_url_needs_no_bundle() -> None:
    url = "http://127.0.0.1:1/"

    order, bundle, _ = submission_of(url, [], OrderOptions(overrides=Overrides(duration="1s")))

    assert (order.name, order.bundle.url, bundle) == (url, url, b"")
    assert order.bundle.digest == hashlib.sha256(url.encode()).hexdigest()
    with pytest.raises(Invalid, match="no workflows to choose from"):
        submission_of(url, ["Shop"], OrderOptions())


def test_what_is_wrong_is_said_before_anything_is_sent(file: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cores = -1"):
        submission_of(file, [], OrderOptions(cores=-1))
    with pytest.raises(BadThreshold):
        submission_of(file, [], OrderOptions(thresholds=("nonsense",)))
    with pytest.raises(Invalid, match="there is no file"):
        submission_of(str(tmp_path / "none.py"), [], OrderOptions())


def test_a_file_that_submits_itself_when_it_is_imported_is_stopped(file: str) -> None:
    being_imported.add(file)
    try:
        with pytest.raises(SubmittedByImport, match="__main__"):
            submission_of(file, [], OrderOptions())
    finally:
        being_imported.remove(file)


def test_classes_are_found_in_their_file() -> None:
    class Inner(talka.Workflow):
        pass

    assert file_of([TopLevel]) == __file__
    with pytest.raises(NoFile, match="Inner is in no file"):
        file_of([Inner])
    with pytest.raises(NoFile, match="no workflows"):
        file_of([])
    with pytest.raises(NoFile, match="in one file"):
        file_of([TopLevel, talka.Workflow])


class TopLevel(talka.Workflow):
    pass
