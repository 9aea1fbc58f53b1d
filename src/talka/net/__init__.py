"""Endpoints on the network: datagrams, streams, TLS, and the discovery of first peers."""
