"""What people ask of schedules, and whether whom a job names could be told of its end."""

from talka.nodes.dags.dag_reading import DagReading
from talka.nodes.dags.notice_sender import NO_SECRET, NotifyOptions
from talka.nodes.dags.runnable import RunnableCheck, bundled_in
from talka.nodes.dags.schedule_keeper import ScheduleKeeper
from talka.wire.task_views import BackfillRequest, BackfillView, DagFacts, ScheduleView
from talka.work.dags.dag import BadDag, DagSettings, DagSpec
from talka.work.dags.notify import notifies_of, private_problem


class ScheduleCalls(DagReading):
    """The part of `client.dags.DagControl` that is about schedules."""

    _schedules: ScheduleKeeper
    _notices: NotifyOptions
    _runnable: RunnableCheck

    def _check_notices(self, settings: DagSettings) -> None:
        """Whether this manager could tell whom they name."""
        if not settings.notify:
            return
        if not self._notices.secret:
            raise BadDag(f"settings.notify: {NO_SECRET}", field="settings.notify")
        for one in () if self._notices.may_be_private else notifies_of(settings.notify):
            if problem := private_problem(one.url):
                raise BadDag(f"settings.notify: {problem}", field="settings.notify")

    async def put_schedule(self, spec: DagSpec, by: str) -> ScheduleView:
        self._check_loaded()
        self._check_notices(spec.settings)
        self._code.check(spec.bundle)
        if not spec.wait_for_workers:
            self._runnable.check(spec.tasks, bundled_in(spec))
        return await self._schedules.put(spec, by)

    async def drop_schedule(self, name: str) -> None:
        self._check_loaded()
        await self._schedules.drop(name)

    async def schedules(self) -> list[ScheduleView]:
        self._check_loaded()
        return await self._schedules.schedules()

    async def pause_schedule(self, name: str) -> ScheduleView:
        self._check_loaded()
        return await self._schedules.pause(name)

    async def resume_schedule(self, name: str) -> ScheduleView:
        self._check_loaded()
        return await self._schedules.resume(name)

    async def run_schedule(self, name: str, key: str, by: str) -> DagFacts:
        self._check_loaded()
        return await self._schedules.run_now(name, key, by)

    async def backfill(self, name: str, request: BackfillRequest, by: str) -> BackfillView:
        self._check_loaded()
        return await self._schedules.backfill(name, request, by)
