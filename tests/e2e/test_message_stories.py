"""What becomes of messages, whatever happens to their run: random stories on two engines, judged by a model that knows nothing of how it is done."""

from __future__ import annotations

import os

from tests.messages.tally import Tally
from tests.messages.tell import tell

SEED = os.environ["PERDURE_HYPOTHESIS_SEED"]
STORIES = 60


async def test_no_message_is_lost_or_doubled_or_answers_another_question(dsn: str) -> None:
    broken = await tell(dsn, SEED, range(STORIES), Tally())
    assert not broken, f"just messages {SEED} {STORIES}\n" + "\n\n".join(broken[:5])
