"""Two workflows: the first gets a token, the second starts when the first has ended and uses it.

Start a server with `talka demo-server` in another terminal, then: talka run examples/state.py
"""

import os

from talka import URL, HTTPResponse, Provide, Use, Workflow, check, depends, state, step

TARGET = os.environ.get("TARGET", "http://127.0.0.1:8400")


class Login(Workflow):
    # Without vus and duration: one user, once.

    @step()
    async def token_page(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @state("Readers")
    def token(self) -> Provide[str]:
        return f"token-{len(self.token_page.response.content)}"


@depends(Login)
class Readers(Workflow):
    vus = 10
    duration = "5s"

    @state(Login)
    def login_token(self, token: str = "") -> Use[str]:
        return token

    @step()
    async def read(self, url: URL = f"{TARGET}/auth") -> HTTPResponse:
        return await self.client.http.get(url, auth=self.login_token())

    @check()
    def server_saw_the_token(self, read: HTTPResponse) -> bool:
        return self.login_token() in read.text
