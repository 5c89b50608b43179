"""Rejoinder: a stateful server for the Responses API in front of stateless model servers."""
