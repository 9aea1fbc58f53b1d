"""Load jobs of a cluster, followed and reported like those of this machine. Imported only by commands that need it."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from talka.cli.any_job import KindCommands, ResultWanted, watching_text
from talka.cli.config import CliSettings
from talka.cli.connection import answered, asked
from talka.cli.jobs import Reporting
from talka.cli.output import say
from talka.cli.remote import RemoteJob, followed
from talka.cli.saved import summary_of
from talka.client.client import Client
from talka.client.kinds import AnyJob
from talka.report.document import read
from talka.report.html.page import html_report
from talka.wire.views import JobUpdate


class LoadCommands(KindCommands):
    async def updates(self, client: Client, id: str) -> AsyncGenerator[tuple[JobUpdate, int], None]:
        async with contextlib.aclosing(client.watch(id)) as updates:
            async for update in updates:
                yield update, update.job.exit_code or 0

    def watch(self, client: Client, job: AnyJob, given: CliSettings) -> int:
        order = answered(given, client.order(job.id))
        remote = RemoteJob(client, order, order.workflows, cancels=False)
        remote.submitted(job)
        # Results are written where the job was submitted, or by `talka jobs result`.
        reporting = Reporting(remote, CliSettings(ui=given.ui), remote.waiting)
        return followed(remote, reporting, watching_text(job.id))

    def result(self, where: dict[str, Any], job: AnyJob, wanted: ResultWanted) -> int:
        file, page, columns = wanted
        document = read(asked(where, lambda client: client.result(job.id)))
        if file is not None:
            file.write(document.to_json())
        if page is not None:
            page.write(html_report(document).encode())
        if not any(written is not None and written.is_stdout for written in (file, page)):
            say(summary_of(document, columns))
        return 0

    def no_lines(self, job: AnyJob) -> str:
        return ""
