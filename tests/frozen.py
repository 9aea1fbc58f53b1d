"""For runs of many tests that only compute (`-p tests.frozen`): a tenth of their time goes into collecting garbage."""

import gc


def pytest_collection_finish() -> None:
    """Tests and their modules stay until the end: the collector need not walk through them again and again."""
    gc.collect()
    gc.freeze()
