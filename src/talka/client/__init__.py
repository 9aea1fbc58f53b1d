"""Submitting, watching and cancelling jobs from elsewhere: typed requests, the port they go through, and the client."""
