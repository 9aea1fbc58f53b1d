"""One job, as a state machine: told that it may count on, and what time it is."""

from talka.client.kinds import AnyJob
from talka.client.sheets import JobSheet, filled, instant, state_text
from talka.wire.views import instant_text
from talka.work.lifecycle import JobState, is_final, move
from tests.ports.count_kind.spec import CountSpec


class CountJob:
    def __init__(self, id: str, number: int, spec: CountSpec, by: str, now_ms: int) -> None:
        self.id, self.number, self.spec = id, number, spec
        self.counted = 0
        self.state = move(JobState.SUBMITTED, JobState.RUNNING)
        self._by, self._reason, self._submitted_ms, self._ended_ms = by, "", now_ms, 0

    @property
    def is_over(self) -> bool:
        return is_final(self.state)

    def count(self, now_ms: int) -> None:
        self.counted += 1
        if self.counted == self.spec.to:
            self.state = move(self.state, JobState.COMPLETING)
            self._end(JobState.COMPLETED, now_ms)

    def cancel(self, reason: str, now_ms: int) -> None:
        self.state, self._reason = move(self.state, JobState.CANCELLING), reason
        self._end(JobState.CANCELLED, now_ms)

    def _end(self, state: JobState, now_ms: int) -> None:
        self.state, self._ended_ms = move(self.state, state), now_ms

    def facts(self) -> AnyJob:
        exit_code = (0 if self.state is JobState.COMPLETED else 8) if self.is_over else None
        return AnyJob(
            self.id,
            self.spec.name,
            self.state,
            self._reason,
            submitted_at=instant_text(self._submitted_ms),
            ended_at=instant_text(self._ended_ms),
            submitted_by=self._by,
            exit_code=exit_code,
            kind=self.spec.kind,
            tasks=self.spec.to,
            counts={"completed": self.counted, "pending": self.spec.to - self.counted},
        )

    def sheet(self) -> JobSheet:
        facts = self.facts()
        rows = [
            ("job", self.id),
            ("name", facts.name),
            ("state", state_text(facts.state, facts.reason)),
            ("counted", f"{self.counted:,} of {self.spec.to:,}"),
            ("submitted", instant(facts.submitted_at)),
            ("ended", instant(facts.ended_at)),
        ]
        return JobSheet(self.id, facts.kind, facts.name, facts.state, filled(rows))
