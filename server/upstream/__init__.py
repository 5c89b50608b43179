"""The HTTP client of the upstream. The only place that imports httpx."""
