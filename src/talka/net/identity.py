"""What a node shows of itself over TLS, and whom it talks to. Imported only where there are certificates."""

from pathlib import Path

from talka.clock import utc_now
from talka.errors import Invalid
from talka.net.certificates import describe
from talka.net.tls import TlsChannel, check_identity, client_context, find_certs, server_context
from talka.wire.security.roles import Role


def role_in(folder: Path, name: str) -> Role:
    """What whoever asks with this certificate is: a client, or a manager whose operator asks."""
    mine = describe(find_certs(folder, name).certificate, now=utc_now())
    return Role.MANAGER if mine.role == Role.MANAGER else Role.CLIENT


class Certified:
    """The certificate of one node, and the rules for those of its peers."""

    def __init__(self, folder: Path, *, name: str, role: Role, cluster: str, environment: str) -> None:
        self._folder = folder
        self._name = name
        self._role = role
        self._cluster = cluster
        self._environment = environment
        self.reload()

    def reload(self) -> None:
        """Read the files (again): connections from now on use them. Where they do not hold nothing is changed."""
        certs = find_certs(self._folder, self._name)
        mine = describe(certs.certificate, now=utc_now(), ca=certs.ca)
        if mine.problem:
            raise Invalid(f"the certificate {certs.certificate} cannot be used: {mine.problem}")
        for what, claimed, wanted in (
            ("name", mine.name, self._name),
            ("role", mine.role, self._role),
            ("cluster", mine.cluster, self._cluster),
            ("environment", mine.environment, self._environment),
        ):
            if claimed != wanted:
                raise Invalid(
                    f"the certificate {certs.certificate} is for {what} {claimed!r}, and this is {str(wanted)!r}: "
                    "issue another one with talka certs issue"
                )
        self._server, self._client = server_context(certs), client_context(certs)

    def channel(self, *, server_side: bool) -> TlsChannel:
        return TlsChannel(self._server if server_side else self._client, server_side=server_side)

    def judge(self, channel: TlsChannel, *, initiated_by_peer: bool) -> tuple[str, str]:
        refused = check_identity(
            channel.identity,
            cluster=self._cluster,
            environment=self._environment,
            role_here=self._role,
            initiated_by_peer=initiated_by_peer,
        )
        return ("", "") if refused is None else (refused.reason, refused.text)
