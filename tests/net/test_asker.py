"""Whoever asks a node asks only what that node knows."""

from typing import Any

import pytest

from talka.net.asker import AnswerRefused, NodeAsker
from talka.wire.asking import AskMembers
from talka.wire.versions import VERSION


class AskWeather(AskMembers, frozen=True, tag=240):
    since = VERSION.minor


async def test_a_question_that_the_node_is_too_old_for_is_answered_with_a_sentence_and_not_sent() -> None:
    asker = NodeAsker(
        "old:8471", "127.0.0.1:1", secrets=("kD7wq2Zr-9xMvB4tYpLs8HnGfJc3RaEu",), cluster="shop", environment="staging"
    )
    asker._node = "old"
    asker._admission.agreements.meet("old", 7, "1.0")
    question: Any = AskWeather()

    with pytest.raises(AnswerRefused) as refusal:
        await asker.ask(question)

    assert str(refusal.value) == "old speaks protocol 1.0 and does not know this question: upgrade it"
    assert asker._streams.connections == 0
