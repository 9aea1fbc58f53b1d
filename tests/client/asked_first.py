"""Which of several managers as near a client asks first is drawn; a test that needs one of them says so."""

from talka.client.client import Client


def asking_first(client: Client, address: object) -> Client:
    client.book._pool.current = str(address)
    return client
